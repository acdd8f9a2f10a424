"""`nanoserve fetch`: public models and traces, brought once, checked, and kept."""

from __future__ import annotations

from typing import Annotated

import typer

from nanoserve_cli.assets import ASSETS
from nanoserve_cli.console import download_bar, reported, show

_KNOWN = "; ".join(f"{asset.key}: {asset.about} ({asset.licence})" for asset in ASSETS)


def fetch(
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY", help=f"What to bring. {_KNOWN}.")] = None,
) -> None:
    """Bring a public model or trace into the cache and print where it is; without a key, list what there is."""
    with reported():
        from nanoserve_cli.fetch import asset_named, cached
        from nanoserve_cli.fetch import fetch as bring
        from nanoserve_cli.tables import assets_table

        if not keys:
            show(assets_table([(asset, cached(asset)) for asset in ASSETS]))
            return
        for asset in [asset_named(key) for key in keys]:
            with download_bar(asset.key) as progress:
                path = bring(asset, progress=progress)
            typer.echo(path)
