"""Write the pages of the documentation that are made from the code, or check that they are up to date.

python docs/generate.py [--check] [--out FOLDER]
"""  # noqa: INP001  # a script, not part of a package

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from generator.configuration_page import configuration_pages
from generator.metrics_page import metrics_pages
from generator.op_pages import op_pages
from generator.support_page import support_pages
from pictures.cache import cache_picture
from pictures.declaration import declaration_picture
from pictures.step import step_picture

DOCS = Path(__file__).parent
OWNED = ("ops/*.md", "pictures/*.svg")
"""Files that only this script writes; one that it would not write is left over from something that is gone."""


def pages() -> dict[str, str]:
    """Every generated file, by its path below ``docs/``; the same on every machine."""
    return {
        **op_pages(),
        **support_pages(),
        **configuration_pages(),
        **metrics_pages(),
        "pictures/step.svg": step_picture(),
        "pictures/declaration.svg": declaration_picture(),
        "pictures/cache.svg": cache_picture(),
    }


def stale(folder: Path, expected: dict[str, str]) -> list[str]:
    """Files below ``folder`` that are missing, differ from what is expected, or are left over."""
    wrong = [name for name, text in expected.items() if _read(folder / name) != text]
    owned = [path.relative_to(folder).as_posix() for pattern in OWNED for path in folder.glob(pattern)]
    return sorted({*wrong, *(name for name in owned if name not in expected)})


def write(folder: Path, expected: dict[str, str]) -> None:
    """Bring the files below ``folder`` to what is expected."""
    for name in stale(folder, expected):
        if name not in expected:
            (folder / name).unlink()
            continue
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(expected[name], encoding="utf-8")


def main() -> int:
    """Exit code 1 when ``--check`` finds a stale file, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; name the files that are not up to date")
    parser.add_argument("--out", type=Path, default=DOCS, metavar="FOLDER", help="folder of the pages (default: docs)")
    args = parser.parse_args()
    expected = pages()
    if not args.check:
        write(args.out, expected)
        return 0
    found = stale(args.out, expected)
    for name in found:
        sys.stderr.write(f"{name} is not up to date; run python docs/generate.py\n")
    return 1 if found else 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.is_file() else None


if __name__ == "__main__":
    sys.exit(main())
