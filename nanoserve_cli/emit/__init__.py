"""A shape policy as the engine that will run it takes it: flags, JSON, YAML or a file, and what to know before pasting.

target      EmitTarget, what is asked for; Emission, what is answered
notes       warnings that several engines share
vllm        sizes in tokens, shared with mixed batches
row_lists   engines that take a list of batch sizes: SGLang, TensorRT-LLM, LMDeploy, TGI, mini-sglang
width_lists engines that take widths too: nanoserve, Gaudi, Neuron
registry    EMITTERS, one function and one entry an engine, and emit
"""

from nanoserve_cli.emit.registry import EMITTERS, Emitter, emit
from nanoserve_cli.emit.target import CUDAGRAPH_MODES, Emission, EmitTarget

__all__ = ["CUDAGRAPH_MODES", "EMITTERS", "Emission", "EmitTarget", "Emitter", "emit"]
