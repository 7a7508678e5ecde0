"""Whisper (Radford et al. 2022, https://arxiv.org/abs/2212.04356): half a minute of sound to text, token by token."""

from __future__ import annotations

from iree_gauntlet.bench import Generative, benchmark_model

# Start of transcript, English, transcribe, no timestamps: what the field's tools begin with.
_PROMPT = (50258, 50259, 50359, 50363)
_TOKENS = 32


@benchmark_model(configs=["tiny"], parameters={"tiny": 37_760_640})
def whisper(training: bool, config: str, force_num_layers: int | None = None, microbatch: int = 1) -> Generative:
    """The encoder and the prompt in one program, each further token in another; 32 tokens by greedy choice."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    from ._weights import SEED, vary
    from ._whisper import Decode, Prefill

    torch.manual_seed(SEED)
    layers = force_num_layers or {"tiny": 4}[config]
    # The configuration's defaults are those of whisper-tiny.
    settings = WhisperConfig(encoder_layers=layers, decoder_layers=layers)
    model = WhisperForConditionalGeneration(settings).train(training)
    vary(model)
    capacity = len(_PROMPT) + _TOKENS - 1
    features = torch.randn(microbatch, settings.num_mel_bins, 2 * settings.max_source_positions)
    prompt = torch.tensor([_PROMPT] * microbatch)
    return Generative(
        prefill=Prefill(model, capacity),
        decode=Decode(model, capacity),
        inputs=[features, prompt],
        position=len(_PROMPT),
        tokens=_TOKENS,
    )
