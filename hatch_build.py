"""Give the package its links, as it is built: those of the repository only where something says where that is."""

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Links(MetadataHookInterface):
    """Set `project.urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the paper, and what is in the repository at `REPOSITORY_URL`, which the workflows set."""
        urls = {"Paper": "https://arxiv.org/abs/2509.04185"}
        if repository := os.environ.get("REPOSITORY_URL"):
            urls |= {
                "Repository": repository,
                "Documentation": f"{repository}/tree/main/docs",
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
                "Issues": f"{repository}/issues",
            }
        metadata["urls"] = urls
