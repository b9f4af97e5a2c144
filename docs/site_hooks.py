"""What the pages' site has besides ``docs/``: README and CHANGELOG as pages, files that pages link to outside
``docs/``, tables made from the code (``docs/tables.py``), and one page of API reference for every package.

Links in the repository stay links between its files; only the site's copy of a page has them rewritten. A link to a
file that is not there stays as it is, so that ``mkdocs build --strict`` reports it.
"""

from __future__ import annotations

import os.path
import re
import sys
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
DOCS = ROOT / "docs"
OUTSIDE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
"""Pages of the repository's root → their place in the site."""
ROOMS = (
    "smoe", "rl", "evaluation", "simulation", "placement", "autoscaler", "functions", "gateway", "moe", "traces",
    "platform_words",
)  # fmt: skip
ROLE = re.compile(r":(?:mod|class|func|meth|attr|data):(<code>)~?")
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace ``FOLDER/*`` in the navigation by the pages of that folder."""
    for section in config.nav or []:
        for title, entries in section.items():
            if isinstance(entries, list):
                section[title] = [page for entry in entries for page in _expanded(entry)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add generated pages and the files outside ``docs/`` that some page links to."""
    for package in packages():
        files.append(File.generated(config, reference_page(package), content=reference_of(package)))
    for source, place in OUTSIDE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text()))
    waiting = [(page, (DOCS / page).read_text()) for page in _pages()]
    waiting += [(place, (ROOT / source).read_text()) for source, place in OUTSIDE.items()]
    for page, text in waiting:
        for _, link, _ in LINK.findall(text):
            path = _in_repository(page, link)
            place = _place(path)
            if (ROOT / path).is_file() and files.get_file_from_path(place) is None:
                files.append(File.generated(config, place, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: object, config: MkDocsConfig, files: Files) -> str:
    """Fill in tables; rewrite links to files outside ``docs/`` to their place in the site, links to folders to one of
    their pages."""
    from docs.tables import filled

    uri = page.file.src_uri  # type: ignore[attr-defined]

    def rewritten(match: re.Match[str]) -> str:
        path = _in_repository(uri, match[2])
        if not (ROOT / path).exists():
            return match[0]
        if (ROOT / path).is_dir():
            return f"{match[1]}{_relative(uri, _folder_page(path))})"
        return f"{match[1]}{_relative(uri, _place(path))}{match[3]}"

    return LINK.sub(rewritten, filled(markdown))


def on_page_content(html: str, page: object, config: MkDocsConfig, files: Files) -> str:
    """Names in docstrings without the role that Sphinx would read."""
    return ROLE.sub(r"\1", html)


def packages() -> list[str]:
    """Every package of the rooms, as paths: ``autoscaler``, ``autoscaler/policy``."""
    inits = (init for room in ROOMS for init in sorted((ROOT / room).rglob("__init__.py")))
    single = [room for room in ROOMS if (ROOT / f"{room}.py").is_file()]
    return [init.parent.relative_to(ROOT).as_posix() for init in inits] + single


def reference_page(package: str) -> str:
    """The page of a package in the site."""
    return f"reference/{package.replace('/', '.')}.md"


def reference_of(package: str) -> str:
    """The package and each of its modules, for mkdocstrings to fill in."""
    name = package.replace("/", ".")
    modules = sorted(path.stem for path in (ROOT / package).glob("*.py") if not path.stem.startswith("_"))
    lines = [
        f"# {name}",
        f"::: {name}\n    options: {{show_root_heading: false, show_submodules: false, members: false}}",
    ]
    lines += [f"::: {name}.{module}" for module in modules]
    return "\n\n".join(lines) + "\n"


def _expanded(entry: object) -> list[object]:
    if not isinstance(entry, str) or not entry.endswith("/*"):
        return [entry]
    folder = entry[:-2]
    if folder == "reference":
        return [reference_page(package) for package in packages()]
    return [page for page in _pages() if page.startswith(f"{folder}/")]


def _pages() -> list[str]:
    return sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def _in_repository(page: str, link: str) -> str:
    """The path in the repository that ``link`` leads to from a page of the site."""
    outside = {place: source for source, place in OUTSIDE.items()}
    base = PurePosixPath(outside[page]) if page in outside else _source(page)
    return os.path.normpath((base.parent / link).as_posix())


def _source(page: str) -> PurePosixPath:
    return PurePosixPath(page[len("source/") :]) if page.startswith("source/") else PurePosixPath("docs", page)


def _place(path: str) -> str:
    """Where a file of the repository stands in the site."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    return path[len("docs/") :] if path.startswith("docs/") else f"source/{path}"


def _folder_page(path: str) -> str:
    pages = [page for page in _pages() if f"docs/{page}".startswith(f"{path}/")]
    return next((page for page in pages if page.endswith("README.md")), pages[0] if pages else "index.md")


def _relative(page: str, place: str) -> str:
    return os.path.relpath(place, PurePosixPath(page).parent)
