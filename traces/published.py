"""Where the public traces are published: address, size, checksum, licence, citation.

Checksums of kind *git-blob* are the publisher's own (the file's id in its repository at the commit in the address);
*sha256* ones are of release files, taken from others who fetched them (for most, two who agree). Where there is none,
a fetch records what it got.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from traces.errors import TraceError
from traces.loading import Format

ChecksumKind = Literal["sha256", "md5", "git-blob"]
AZURE = "https://github.com/Azure/AzurePublicDataset"
AZURE_COMMIT = "b469a113cedca53ddc3bdea71a143dc4b7d8700c"
AZURE_STORE = "https://azurepublicdatasettraces.blob.core.windows.net"
BURSTGPT = "https://github.com/HPMLL/BurstGPT/releases/download/v2.0"
MOONCAKE = (
    "https://raw.githubusercontent.com/kvcache-ai/Mooncake/3b5a594133958449a1feaf1c9e0fc1b553e34a28/FAST25-release"
)
SERVEGEN_COMMIT = "f891d1189eb32b3868dfc443800c4150548c282a"


@dataclass(frozen=True)
class Checksum:
    kind: ChecksumKind
    value: str
    """Hexadecimal."""


@dataclass(frozen=True)
class Published:
    """One published file."""

    name: str
    """For `smoe traces fetch NAME`."""
    format: Format
    about: str
    addresses: tuple[str, ...]
    """Tried in this order."""
    file: str
    """Name on disk."""
    bytes: int | None
    checksum: Checksum | None
    licence: str
    cite: str
    measured: bool = True

    def path_in(self, folder: Path) -> Path:
        return folder / self.name / self.file


def _azure_raw(file: str) -> tuple[str, ...]:
    return (f"{AZURE}/raw/{AZURE_COMMIT}/data/{file}",)


def _burstgpt(number: int, failures: bool, size: int, sha256: str) -> Published:
    file = f"BurstGPT{'' if failures else '_without_fails'}_{number}.csv"
    months = {1: "first 2 months", 2: "second 2 months", 3: "another 110 days, sessions and elapsed times"}[number]
    return Published(
        f"burstgpt-{number}{'' if failures else '-without-fails'}", "burstgpt",
        f"BurstGPT, {months}, {'with' if failures else 'without'} failed requests", (f"{BURSTGPT}/{file}",), file,
        size, Checksum("sha256", sha256), "CC-BY 4.0", "Wang et al., KDD'25",
    )  # fmt: skip


def _mooncake(
    name: str, path: str, about: str, size: int | None, checksum: Checksum, measured: bool = True
) -> Published:
    return Published(
        f"mooncake-{name}", "mooncake", f"Mooncake, {about}", (f"{MOONCAKE}/{path}",), path.rsplit("/", 1)[-1], size,
        checksum, "Apache-2.0", "Qin et al., FAST'25", measured,
    )  # fmt: skip


PUBLISHED: tuple[Published, ...] = (
    Published(
        "functions-2019", "azure-functions-2019", "Azure Functions 2019, 14 days, requests per function and minute",
        (
            f"{AZURE}/releases/download/dataset-functions-2019/azurefunctions_dataset2019_azurefunctions-dataset2019.tar.xz",
            f"{AZURE_STORE}/azurepublicdatasetv2/azurefunctions_dataset2019/azurefunctions-dataset2019.tar.xz",
        ),
        "azurefunctions-dataset2019.tar.xz", 142_968_140,
        Checksum("sha256", "aff8b3ca7240a41a109e4ee598e0a96e45fcb92e7b8395ac19cb3748cd260d89"),
        "CC-BY 4.0", "Shahrad et al., ATC'20",
    ),
    Published(
        "functions-2021", "azure-functions-2021", "Azure Functions 2021, two weeks, every invocation (rar)",
        _azure_raw("AzureFunctionsInvocationTraceForTwoWeeksJan2021.rar"),
        "AzureFunctionsInvocationTraceForTwoWeeksJan2021.rar", None,
        Checksum("git-blob", "23d914f5c18a7ca6445489ef8f0be6d3e88b895a"), "CC-BY 4.0", "Zhang et al., SOSP'21",
    ),
    Published(
        "llm-2023-code", "azure-llm", "Azure LLM 2023, code completion, one hour",
        _azure_raw("AzureLLMInferenceTrace_code.csv"), "AzureLLMInferenceTrace_code.csv", 320_117,
        Checksum("git-blob", "62bd8109d0f2b1bc48206d397ecca48d8de03aab"), "CC-BY 4.0", "Patel et al., ISCA'24",
    ),
    Published(
        "llm-2023-conv", "azure-llm", "Azure LLM 2023, conversation, one hour",
        _azure_raw("AzureLLMInferenceTrace_conv.csv"), "AzureLLMInferenceTrace_conv.csv", 719_188,
        Checksum("git-blob", "5b9219f2caf93bbbf95ec29894e206115658e235"), "CC-BY 4.0", "Patel et al., ISCA'24",
    ),
    Published(
        "llm-2024-code", "azure-llm", "Azure LLM 2024, code completion, one week, 16.8 M requests",
        (
            f"{AZURE}/releases/download/dataset-llm-2024/AzureLLMInferenceTrace_code_1week.csv",
            f"{AZURE_STORE}/azurellminfererencetrace/AzureLLMInferenceTrace_code_1week.csv",
        ),
        "AzureLLMInferenceTrace_code_1week.csv", 691_989_454, None, "CC-BY 4.0", "Stojkovic et al., HPCA'25",
    ),
    Published(
        "llm-2024-conv", "azure-llm", "Azure LLM 2024, conversation, one week, 27.3 M requests",
        (
            f"{AZURE}/releases/download/dataset-llm-2024/AzureLLMInferenceTrace_conv_1week.csv",
            f"{AZURE_STORE}/azurellminfererencetrace/AzureLLMInferenceTrace_conv_1week.csv",
        ),
        "AzureLLMInferenceTrace_conv_1week.csv", 1_135_195_393,
        Checksum("sha256", "a0cc9b969a9bbf0fd811802cbf4323edd3a209ace791e3799ad4f9207f213941"),
        "CC-BY 4.0", "Stojkovic et al., HPCA'25",
    ),
    _burstgpt(1, True, 52_283_111, "4bb3783693d0a435686fbfc885615d2349bd067239079fa4b749f2e679e12122"),
    _burstgpt(2, True, 144_819_209, "44bf5942b03fca42c01a226a545ad3a750ec62688faecd67b6831c56a8928bf7"),
    _burstgpt(3, True, 231_682_327, "2299986a07388aa303ec2c41d1131e756db650a39ed6ef9dfe7cc3d7f9a43b8f"),
    _burstgpt(1, False, 51_429_517, "a4d068a7113ec0290e74063a1b3447dc6001a30e4298eb313581b71006dda1f4"),
    _burstgpt(2, False, 142_376_815, "56193aa9b2bb26128ded43d2d29a960df6bf5af062bcfc9b005f3fcaa4e6e501"),
    _burstgpt(3, False, 217_312_026, "3326259f9efb11845bc5ef85fa97e6f691050b0974621c91ef22acd566c43a40"),
    _mooncake(
        "conversation", "traces/conversation_trace.jsonl", "conversation, one hour", 3_029_533,
        Checksum("git-blob", "5a371794b81d7fc7487ec8a02a2c631bcc7fbdf8"),
    ),
    _mooncake(
        "toolagent", "traces/toolagent_trace.jsonl", "tools and agents, one hour", None,
        Checksum("git-blob", "b765599d1e0828b37f68d481563c385d3c11de54"),
    ),
    _mooncake(
        "synthetic", "traces/synthetic_trace.jsonl", "public data sets with Poisson arrivals", 1_136_313,
        Checksum("git-blob", "e4838049c0dcfc358a5f24ab08251279475cba94"), measured=False,
    ),
    Published(
        "servegen", "servegen", "ServeGen, 5 models, 1 to 14 days, statistics per client and 600 s",
        (f"https://codeload.github.com/alibaba/ServeGen/tar.gz/{SERVEGEN_COMMIT}",), "ServeGen.tar.gz", None, None,
        "Apache-2.0", "Xiang et al., 2025",
    ),
)  # fmt: skip


def published(name: str) -> Published:
    """Raises TraceError that lists the names."""
    for entry in PUBLISHED:
        if entry.name == name:
            return entry
    names = ", ".join(entry.name for entry in PUBLISHED)
    raise TraceError(f"{name!r} is no published trace known here; there are: {names}")
