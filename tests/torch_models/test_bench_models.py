from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING, Any

import pytest

from iree_gauntlet.bench import Generative, benchmark_model, on_host
from iree_gauntlet.errors import UsageError
from iree_gauntlet.torch_models.build_files import BuildOptions
from iree_gauntlet.torch_models.declarations import collect_declarations, sort_by_name
from iree_gauntlet.torch_models.model_registry import (
    BenchmarkModel,
    Instance,
    ModelError,
    Pipeline,
    discover,
    instantiate,
)
from tests.support.places import ROOT

with contextlib.suppress(ModuleNotFoundError):
    # Without it these tests are not selected, and have to be collected all the same.
    import torch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


pytestmark = pytest.mark.models

SHIPPED = ROOT / "specs" / "models"
MODELS = discover([SHIPPED])
ALL = [(name, config) for name, model in MODELS.items() for config in model.configs or [None]]
# Those that take a moment; where layers repeat, one of each says as much as all.
SMALL = [
    ("bert", "tiny", None),
    ("deit", "tiny", 1),
    ("llama", "tiny", 1),
    ("mobilenet", "v1", None),
    ("mobilenet", "v2", None),
    ("mobilenet", "v3", None),
    ("resnet", "18", None),
    ("unet", None, None),
    ("vit", "tiny", 1),
]


def built(name: str, config: str | None = None, layers: int | None = None, **options: Any) -> Instance:
    return instantiate(MODELS[name], BuildOptions(config=config, layers=layers, **options))


def pipeline(instance: Instance) -> Pipeline:
    assert isinstance(instance.content, Pipeline)
    return instance.content


def on_the_device(made: Pipeline) -> tuple[Any, ...]:
    """What the device's module is given."""
    with torch.no_grad():
        return made.inputs if made.pre is None else (made.pre(*made.inputs),)


def output(made: Pipeline) -> Any:
    with torch.no_grad():
        return made.device(*on_the_device(made))


def declared(function: Callable[..., Any], **given: Any) -> BenchmarkModel:
    with collect_declarations() as models:
        benchmark_model(**given)(function)
    return sort_by_name(models, BenchmarkModel, [])[function.__name__]


@pytest.mark.parametrize(("name", "config"), ALL, ids=[f"{name}-{config}" for name, config in ALL])
def test_declared_parameter_counts_are_true(name: str, config: str | None) -> None:
    # On this device a network has shapes and no numbers.
    with torch.device("meta"):
        instance = built(name, config)
    assert instance.parameter_count == MODELS[name].parameter_count(config)
    assert instance.samples == 1


def test_another_count_is_an_error() -> None:
    def line(training: bool) -> Any:
        return [torch.nn.Linear(2, 2)], [torch.ones(1, 2)]

    assert instantiate(declared(line, parameters=6), BuildOptions()).parameter_count == 6
    with pytest.raises(ModelError, match="line: the decorator declares 7 parameters, and the modules have 6"):
        instantiate(declared(line, parameters=7), BuildOptions())


def test_shared_parameters_count_once_and_layers_free_the_count() -> None:
    def shared(training: bool, force_num_layers: int | None = None) -> Any:
        layer = torch.nn.Linear(2, 2)
        return [on_host(layer), torch.nn.Sequential(layer, torch.nn.Linear(2, 1))], [torch.ones(3, 2)]

    model = declared(shared, parameters=9)
    assert instantiate(model, BuildOptions()).parameter_count == 9
    model = declared(shared, parameters=10)
    assert instantiate(model, BuildOptions(layers=1)).samples == 3


def test_a_function_that_fails_is_named_with_its_line() -> None:
    def broken(training: bool) -> Any:
        raise RuntimeError("shapes that do not fit")

    model = declared(broken)
    with pytest.raises(ModelError) as caught:
        instantiate(model, BuildOptions())
    (problem,) = caught.value.problems
    assert problem.message == "RuntimeError: shapes that do not fit"
    assert (problem.line, problem.field) == (model.line + 1, "broken")


def test_inputs_that_do_not_have_the_samples_asked_for() -> None:
    def fixed(training: bool, microbatch: int = 1) -> Any:
        return [torch.nn.Identity()], [torch.ones(1, 2)]

    with pytest.raises(ModelError, match=r"with a microbatch of 4, .* of shape \[1, 2\]"):
        instantiate(declared(fixed), BuildOptions(microbatch=4))


def test_inference_is_in_evaluation_mode_and_training_as_the_function_left_it() -> None:
    def dropping(training: bool) -> Any:
        return [torch.nn.Dropout()], [torch.ones(1, 2)]

    model = declared(dropping)
    for training in (False, True):
        assert pipeline(instantiate(model, BuildOptions(training=training))).device.training is training


@pytest.mark.parametrize(("name", "config", "layers"), SMALL)
def test_models_are_the_same_every_time_and_have_something_to_say(
    name: str, config: str | None, layers: int | None
) -> None:
    first, second = (output(pipeline(built(name, config, layers))) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.isfinite(first).all()
    assert 0.05 < first.std() < 10


@pytest.mark.parametrize(("name", "config", "layers"), SMALL)
def test_training_is_without_chance_and_reaches_every_parameter(
    name: str, config: str | None, layers: int | None
) -> None:
    made = pipeline(built(name, config, layers, training=True))
    inputs = on_the_device(made)
    assert made.device.training
    first, second = made.device(*inputs), made.device(*inputs)
    assert torch.equal(first, second)
    first.square().mean().backward()
    for label, weight in made.device.named_parameters():
        assert weight.grad is not None, label
        assert torch.isfinite(weight.grad).all(), label
        assert weight.grad.abs().max() > 0, label


def test_layers_and_samples_are_as_asked() -> None:
    with torch.device("meta"):
        assert built("bert", "base", 3).parameter_count == 109_483_778 - 9 * 7_087_872
        for name, config in ALL:
            assert built(name, config, microbatch=3).samples == 3


def test_patches_have_their_places() -> None:
    for name in ("vit", "deit"):
        made = pipeline(built(name, "tiny", 1))
        (image,) = on_the_device(made)
        difference = made.device(image) - made.device(image.roll(16, dims=-1))
        assert difference.abs().max() > 0.01, name


def test_bert_reads_every_word_but_the_padding() -> None:
    made = pipeline(built("bert", "tiny"))
    words, mask = made.inputs
    usual = made.device(words, mask)
    padded, changed = words.clone(), words.clone()
    padded[:, -1] += 1
    changed[:, 60] += 1
    assert mask.sum() == 96
    assert torch.equal(made.device(padded, mask), usual)
    assert (made.device(changed, mask) - usual).abs().max() > 0.01


def test_hosts_scale_images_and_make_masks() -> None:
    for name, config in (("deit", "tiny"), ("unet", None)):
        made = pipeline(built(name, config, 1 if name == "deit" else None))
        assert made.inputs[0].dtype == torch.uint8
        (scaled,) = on_the_device(made)
        assert abs(float(scaled.mean())) < 0.5
        assert 1 < float(scaled.std()) < 1.5
    assert made.post is not None
    mask = made.post(output(made))
    assert mask.dtype == torch.bool
    assert 0 < float(mask.float().mean()) < 1


def greedy(content: Generative, prefill: Any, decode: Any, count: int) -> tuple[list[int], list[Any]]:
    """The loop as `Generative` has it; the tokens, and the logits that they were chosen by."""
    chosen, seen = [], []
    logits, *state = prefill(*content.inputs)
    for position in range(content.position, content.position + count):
        chosen.append(int(logits[0].argmax()))
        seen.append(logits)
        logits, *new = decode(torch.tensor([[chosen[-1]]]), torch.tensor([position]), *state)
        state[: len(new)] = new
    return chosen, seen


def whisper() -> Generative:
    instance = built("whisper", layers=1)
    assert isinstance(instance.content, Generative)
    return instance.content


def test_whisper_with_its_cache_is_whisper_without() -> None:
    content = whisper()
    features, prompt = content.inputs
    model = content.prefill.whisper
    with torch.no_grad():
        chosen, seen = greedy(content, content.prefill, content.decode, 6)
        words = torch.cat([prompt, torch.tensor([chosen[:-1]])], dim=1)
        intact = model.model.encoder(features)
        wanted = model(encoder_outputs=intact, decoder_input_ids=words, use_cache=False).logits
    for index, logits in enumerate(seen):
        torch.testing.assert_close(logits, wanted[:, prompt.shape[1] - 1 + index], atol=1e-5, rtol=1e-5)
    assert len(set(chosen)) > 1


def test_whisper_listens() -> None:
    content = whisper()
    features, prompt = content.inputs
    with torch.no_grad():
        difference = content.prefill(features, prompt)[0] - content.prefill(features.flip(-1), prompt)[0]
    assert difference.abs().max() > 0.01


def test_whisper_is_not_trained_here() -> None:
    with pytest.raises(UsageError, match="whisper is a generative model, which cannot be trained"):
        built("whisper", layers=1, training=True)


def test_the_models_of_the_documentation(tmp_path: Path) -> None:
    page = (SHIPPED.parents[1] / "docs" / "how-to" / "bench-models.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"```python\n# my-models/(\w+\.py)\n(.*?)```", page, re.DOTALL):
        (tmp_path / name).write_text(text, encoding="utf-8")
    models = discover([tmp_path])
    assert list(models) == ["brightness", "perceptron"]
    small = instantiate(models["perceptron"], BuildOptions(config="small"))
    assert (small.parameter_count, small.samples) == (203_530, 16)
    assert output(pipeline(small)).shape == (16, 10)
    assert output(pipeline(instantiate(models["brightness"], BuildOptions()))).shape == (8, 10)


def test_the_model_that_was_brought_over_from_pybuda(tmp_path: Path) -> None:
    page = (SHIPPED.parents[1] / "docs" / "how-to" / "bench-models.md").read_text(encoding="utf-8")
    ((name, text),) = re.findall(r"```python\n# ours/(\w+\.py)\n(.*?)```", page, re.DOTALL)
    (tmp_path / name).write_text(text, encoding="utf-8")
    model = discover([tmp_path])["two_layers"]
    assert output(pipeline(instantiate(model, BuildOptions(config="narrow")))).shape == (32, 10)
