"""The type of what a command registers itself with; argparse has no public name for it."""

from __future__ import annotations

import argparse
from typing import TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
