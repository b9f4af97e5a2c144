"""Which traces are there: the public ones in a folder laid out as their README has it, and the synthetic samples of
this room."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from traces import arrival_process as placing
from traces import loading
from traces.arrival_process import Placement
from traces.errors import TraceError
from traces.formats import azure_functions_2019
from traces.model import PATTERNS, Pattern, Trace
from traces.published import PUBLISHED, Published

SAMPLES = Path(__file__).parent / "samples"
SYNTHETIC_BURSTY_HOUR = SAMPLES / "made_bursty_hour.csv.gz"
DATA_VARIABLE = "SMOE_TRACES"
USUAL_PLACE = Path("../shared/traces")
FETCHED_PLACE = Path(".smoe/traces")
"""Where `smoe traces fetch` puts files when no folder is named."""


@dataclass(frozen=True)
class DataSet:
    """One file of the known layout. ``measured`` false: synthetic or derived, for tests and shapes only."""

    name: str
    path: Path
    format: loading.Format
    about: str
    measured: bool = True


KNOWN: tuple[tuple[str, str, loading.Format, str], ...] = (
    ("functions-8h", "azure_functions_2019/invocations_8h_functions.csv.gz", "azure-functions-2019",
     "Azure Functions 2019, 376 functions, 8 h, requests per minute"),
    ("functions-day", "azure_functions_2019/invocations_day_rows.csv.gz", "azure-functions-2019",
     "Azure Functions 2019, 848 rows, one day, requests per minute"),
    ("functions-2021-sample", "azure_functions_2021/Azure2021_first_200_rows.csv", "azure-functions-2021",
     "Azure Functions 2021, first 199 invocations: the format, too few to train on"),
    ("llm-code", "azure_llm_2023/AzureLLMInferenceTrace_code_first75pct.csv.gz", "azure-llm",
     "Azure LLM 2023, code completion, 43 min, requests with tokens"),
    ("llm-conv", "azure_llm_2023/AzureLLMInferenceTrace_conv_first75pct.csv.gz", "azure-llm",
     "Azure LLM 2023, conversation, 44 min, requests with tokens"),
    ("mooncake-conv", "mooncake/conversation_trace_first_half.jsonl.gz", "mooncake",
     "Mooncake conversation, first 29 min, requests with tokens, times batched to 3 s"),
    ("mooncake-made", "mooncake/synthetic_trace.jsonl.gz", "mooncake",
     "Mooncake synthetic (public data sets, Poisson arrivals), 17 min"),
    ("servegen-large", "servegen/language_m-large_clients_days01-12.csv.gz", "servegen",
     "ServeGen large language model, 162 clients, 12 days, statistics per 600 s"),
    ("servegen-mid", "servegen/language_m-mid_clients_days01-12.csv.gz", "servegen",
     "ServeGen mid language model, 109 clients, 12 days, statistics per 600 s"),
    ("servegen-small", "servegen/language_m-small_clients_days01-12.csv.gz", "servegen",
     "ServeGen small language model, 43 clients, 12 days, statistics per 600 s"),
    ("servegen-reason", "servegen/reason_deepseek-r1_clients_1day.csv.gz", "servegen",
     "ServeGen reasoning model, 73 clients, 1 day, statistics per 600 s"),
    ("servegen-image", "servegen/multimodal_mm-image_clients_1day.csv.gz", "servegen",
     "ServeGen image-and-text model, 35 clients, 1 day, statistics per 600 s"),
)  # fmt: skip

NOT_MEASURED = frozenset({"mooncake-made"})

SYNTHETIC: tuple[tuple[str, str, loading.Format, str], ...] = (
    ("made-functions", "made_azure_functions.csv", "azure-functions-2019", "synthetic sample of the per-minute format"),
    (
        "made-rows",
        "made_azure_rows.csv",
        "azure-functions-2019",
        "synthetic sample of the per-minute format with RowId",
    ),
    ("made-llm", "made_azure_llm.csv", "azure-llm", "synthetic sample of the LLM format"),
    (
        "made-functions-2021",
        "made_azure_functions_2021.csv",
        "azure-functions-2021",
        "synthetic sample of the 2021 format",
    ),
    ("made-llm-2024", "made_azure_llm_2024.csv", "azure-llm", "synthetic sample of the LLM format with zones"),
    ("made-burstgpt", "made_burstgpt.csv", "burstgpt", "synthetic sample of BurstGPT's first two files"),
    ("made-burstgpt-3", "made_burstgpt_3.csv", "burstgpt", "synthetic sample of BurstGPT's third file"),
    ("made-mooncake", "made_mooncake.jsonl", "mooncake", "synthetic sample of Mooncake's lines"),
    ("made-servegen-chunk", "chunk-0-trace.csv", "servegen", "synthetic sample of one client's published file"),
    ("made-servegen", "made_servegen.csv", "servegen", "synthetic sample of the window statistics"),
    (
        "made-bursty-hour",
        "made_bursty_hour.csv.gz",
        "arrivals",
        "synthetic hour with a CV above 3, stands in for a real one",
    ),
)

BURSTY_HOUR = ("functions-day", "b8e22791c659b429", 421)
"""Data set, RowId, first minute: 10169 requests, CV 5.14 (even) to 6.0 (uniform), busiest minute 547."""


def data_folder(given: Path | None = None) -> Path | None:
    """The folder of real traces: ``given``, else ``$SMOE_TRACES``, else ``../shared/traces``; None when there is
    none.

    A folder that was named but does not exist is an error (TraceError), not a reason to use something else.
    """
    named = given or (Path(os.environ[DATA_VARIABLE]) if os.environ.get(DATA_VARIABLE) else None)
    if named is None:
        return USUAL_PLACE if USUAL_PLACE.is_dir() else None
    if not named.is_dir():
        raise TraceError(f"the trace folder {named} does not exist (given by --data or ${DATA_VARIABLE})")
    return named


def fetched_path(entry: Published, data: Path | None) -> Path | None:
    """Where a published file lies since it was fetched; None: it was not."""
    folders = [folder for folder in (data, FETCHED_PLACE) if folder is not None]
    return next((entry.path_in(folder) for folder in folders if entry.path_in(folder).is_file()), None)


def text_folder(data: Path | None) -> Path | None:
    """Where real prompts lie in the folder of real traces; None where there are none."""
    return data / "text" if data is not None and (data / "text").is_dir() else None


def fetch_folder() -> Path:
    """``$SMOE_TRACES``, else ``.smoe/traces``."""
    return Path(os.environ.get(DATA_VARIABLE) or FETCHED_PLACE)


def datasets(data: Path | None) -> list[DataSet]:
    """What is really there: real files of ``data`` first, then the synthetic samples."""
    public = (
        []
        if data is None
        else [DataSet(name, data / part, kind, about, name not in NOT_MEASURED) for name, part, kind, about in KNOWN]
    )
    synthetic = [DataSet(name, SAMPLES / part, kind, about, measured=False) for name, part, kind, about in SYNTHETIC]
    return [dataset for dataset in public + synthetic if dataset.path.is_file()]


def resolve(name: str, data: Path | None) -> Path:
    """A data set's name or a file's path. Raises TraceError that lists the names."""
    for dataset in datasets(data):
        if dataset.name == name:
            return dataset.path
    fetched = next((entry for entry in PUBLISHED if entry.name == name), None)
    if fetched is not None:
        path = fetched_path(fetched, data)
        if path is not None:
            return path
        raise TraceError(f"{name} is published but not here; get it with `smoe traces fetch {name}`")
    if Path(name).exists():
        return Path(name)
    names = ", ".join(dataset.name for dataset in datasets(data))
    raise TraceError(f"{name!r} is neither a file nor a data set that is there; there are: {names}")


def bursty_hour(data: Path | None, placement: Placement = "uniform", seed: int = 0) -> Trace:
    """The hour of the main job: a real Azure Functions hour when the real traces are there, else the synthetic one.

    The trace's ``source`` names it. Raises TraceError.
    """
    dataset, row, minute = BURSTY_HOUR
    for candidate in datasets(data):
        if candidate.name == dataset:
            counts = azure_functions_2019.find_row(candidate.path, row).hour(minute)
            return placing.to_trace(counts, placement, seed)
    return loading.load(SYNTHETIC_BURSTY_HOUR)


def allowed(pattern: str) -> Pattern:
    """``pattern`` as one of the three names. Raises TraceError."""
    for pattern_name in PATTERNS:
        if pattern == pattern_name:
            return pattern_name
    raise TraceError(f"{pattern!r} is no pattern; allowed are slow, normal, bursty")
