"""MobileNets for images of 224x224, 1000 classes.

v1: Howard et al. 2017, https://arxiv.org/abs/1704.04861; v2: Sandler et al. 2018, https://arxiv.org/abs/1801.04381;
v3: the Large one of Howard et al. 2019, https://arxiv.org/abs/1905.02244.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from iree_gauntlet.bench import benchmark_model

if TYPE_CHECKING:
    from torch import Tensor, nn


@benchmark_model(configs=["v1", "v2", "v3"], parameters={"v1": 4_231_976, "v2": 3_504_872, "v3": 5_483_032})
def mobilenet(training: bool, config: str, microbatch: int = 1) -> tuple[list[nn.Module], list[Tensor]]:
    """All of width 1.0; without dropout, so that gradients can be compared."""
    import torch

    from ._mobilenet_v3 import MobileNetV3Large
    from ._weights import SEED, Output, images, settle

    torch.manual_seed(SEED)
    if config == "v1":
        from transformers import MobileNetV1Config, MobileNetV1ForImageClassification

        model = Output(
            MobileNetV1ForImageClassification(MobileNetV1Config(num_labels=1000, classifier_dropout_prob=0.0))
        )
    elif config == "v2":
        from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

        model = Output(
            MobileNetV2ForImageClassification(MobileNetV2Config(num_labels=1000, classifier_dropout_prob=0.0))
        )
    else:
        model = MobileNetV3Large()
    model.train(training)
    inputs = images(microbatch, 224)
    settle(model, inputs)
    return [model], [inputs]
