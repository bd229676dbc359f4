"""Installed backends as entry points: their names without an import, one of them by stevedore's driver pattern."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from deepinfer_core.errors import BackendLoadError, BackendNotFound

if TYPE_CHECKING:
    from stevedore.driver import DriverManager

    from deepinfer_core.backend.interface import BackendInfo

GROUP = "deepinfer.backends"
"""Entry-point group. It carries no version: ``BackendInfo.interface_version`` does."""


@dataclass(frozen=True, slots=True)
class Provider:
    """A distribution that offers a backend under a name."""

    name: str
    distribution: str
    version: str


def _installed() -> Iterable[importlib.metadata.EntryPoint]:
    return importlib.metadata.entry_points(group=GROUP)


def _driver(name: str) -> DriverManager[BackendInfo]:
    from stevedore.driver import DriverManager

    return DriverManager(GROUP, name, invoke_on_load=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plugins:
    """Where backends come from; tests pass their own entry points and drivers.

    Attributes:
        entry_points: Every entry point of the group, not loaded.
        driver: Imports the one that a name stands for and makes its ``BackendInfo``.
    """

    entry_points: Callable[[], Iterable[importlib.metadata.EntryPoint]] = _installed
    driver: Callable[[str], DriverManager[BackendInfo]] = _driver

    def providers(self) -> tuple[Provider, ...]:
        """Every offer, sorted by name; nothing is imported."""
        offers = (Provider(point.name, *_distribution(point)) for point in self.entry_points())
        return tuple(sorted(offers, key=lambda offer: (offer.name, offer.distribution)))

    def open(self, name: str) -> BackendInfo:
        """Import the module behind a name and make its ``BackendInfo``.

        Raises:
            BackendNotFound: No distribution offers the name.
            BackendLoadError: Several offer it, or what it names does not import; the cause is chained.
        """
        from stevedore.exception import MultipleMatches, NoMatches

        try:
            return cast("BackendInfo", self.driver(name).driver)
        except NoMatches as error:
            raise BackendNotFound(f"no installed package offers a backend named {name!r}") from error
        except MultipleMatches as error:
            offers = [f"{p.distribution} {p.version}" for p in self.providers() if p.name == name]
            raise BackendLoadError(
                f"backend {name!r} is offered by {len(offers)} packages ({', '.join(offers)}); uninstall all but one"
            ) from error
        except (
            Exception
        ) as error:  # the code of others: whatever is wrong with it is told, and other backends still work
            raise BackendLoadError(
                f"backend {name!r} is installed but does not import: {type(error).__name__}: {error}"
            ) from error


def _distribution(point: importlib.metadata.EntryPoint) -> tuple[str, str]:
    """Name and version of the distribution that an entry point belongs to."""
    return (point.dist.name, point.dist.version) if point.dist is not None else ("unknown", "unknown")
