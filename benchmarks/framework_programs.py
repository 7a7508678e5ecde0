"""Programs of JAX and PyTorch for `own_programs.py`: two Python files, and the script that calls them directly."""

JAX_FILE = """
import jax, jax.export, jax.numpy as jnp
from jax import lax, nn, random
weight = random.normal(random.PRNGKey(0), (16, 4))
square = random.normal(random.PRNGKey(5), (16, 16)) / 4
kernel = random.normal(random.PRNGKey(1), (3, 3, 2, 3))
def shapes(*sizes, dtype=jnp.float32): return tuple(jax.ShapeDtypeStruct(size, dtype) for size in sizes)
def mlp(x): return nn.softmax(jnp.tanh(x @ weight))
mlp_arguments = shapes((8, 16))
def convolution(x):
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
convolution_arguments = shapes((1, 6, 6, 2))
def attention(q, k, v): return nn.softmax(q @ k.T / 4) @ v
attention_arguments = shapes((8, 16), (8, 16), (8, 4))
def scan(x): return lax.scan(lambda c, v: (c * 0.5 + v, c), jnp.zeros(4), x)
scan_arguments = shapes((6, 4))
def embedding(i): return weight[i]
embedding_arguments = shapes((5,), dtype=jnp.int32)
def sort(x): return jnp.sort(x), lax.top_k(x, 3)[0]
sort_arguments = shapes((32,))
def norm(x): return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
norm_arguments = shapes((4, 32))
def gelu(x): return nn.gelu(x)
gelu_arguments = shapes((64,))
def numbers(x): return random.uniform(random.PRNGKey(3), (8,)) + x
numbers_arguments = shapes((8,))
def half(x): return jnp.cumsum(x)
half_arguments = shapes((16,), dtype=jnp.bfloat16)
def cholesky(x): return jnp.linalg.cholesky(x @ x.T + jnp.eye(4))
cholesky_arguments = shapes((4, 4))
def float16(x): return jnp.tanh(x) @ weight.astype(jnp.float16)
float16_arguments = shapes((8, 16), dtype=jnp.float16)
def causal(x):
    q, k, v = x @ square, x @ square.T, x
    scores = jnp.where(jnp.tril(jnp.ones((8, 8), bool)), q @ k.T / 4, -jnp.inf)
    return nn.softmax(scores) @ v
causal_arguments = shapes((8, 16))
def loop(x): return lax.while_loop(lambda s: s[0] < 5, lambda s: (s[0] + 1, jnp.sin(s[1]) + 0.1), (0, x))[1]
loop_arguments = shapes((7,))
def branch(p, x): return lax.cond(p, jnp.sin, jnp.cos, x)
branch_arguments = shapes((), dtype=jnp.bool_) + shapes((6,))
def lstm(x):
    def step(state, value):
        h, c = state
        i, f, g, o = jnp.split(value @ square[:4].T @ square[:4] + jnp.tile(h, 4), 4)
        c = nn.sigmoid(f) * c + nn.sigmoid(i) * jnp.tanh(g)
        h = nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h
    return lax.scan(step, (jnp.zeros(4), jnp.zeros(4)), x)[1]
lstm_arguments = shapes((5, 16))
def integers(x, y): return x // y, x % y, x & y, x << 1
integers_arguments = shapes((9,), (9,), dtype=jnp.int32)
def unsigned(x): return x * x, x >> 2
unsigned_arguments = shapes((9,), dtype=jnp.uint8)
def logic(x, y): return jnp.logical_xor(x, y), x.any(), jnp.argmax(x)
logic_arguments = shapes((9,), (9,), dtype=jnp.bool_)
(n,) = jax.export.symbolic_shape("n")
def batch(x): return nn.relu(x @ weight)
batch_arguments = shapes((n, 16))
def named(x, scale): return {"sum": x.sum(-1), "scaled": x * scale}
named_arguments = dict(x=jax.ShapeDtypeStruct((3, 4), jnp.float32), scale=jax.ShapeDtypeStruct((), jnp.float32))
def tree(values): return values["a"] @ values["b"][0], values["b"][1] * 2
tree_arguments = ({"a": shapes((3, 4))[0], "b": list(shapes((4, 2), (5,)))},)
def pool(x): return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
pool_arguments = shapes((1, 8, 8, 3))
def transposed(x): return lax.conv_transpose(x, kernel.transpose(0, 1, 3, 2), (2, 2), "SAME")
transposed_arguments = shapes((1, 4, 4, 3))
def depthwise(x):
    dimensions = ("NHWC", "HWIO", "NHWC")
    return lax.conv_general_dilated(x, kernel[:, :, :1], (2, 2), "SAME", dimension_numbers=dimensions,
                                    feature_group_count=3)
depthwise_arguments = shapes((1, 8, 8, 3))
def mapped(x): return jax.vmap(lambda v: v @ square @ v)(x)
mapped_arguments = shapes((5, 16))
def gradient(x): return jax.grad(lambda v: (jnp.tanh(v @ weight) ** 2).sum())(x)
gradient_arguments = shapes((3, 16))
def scatter(x, i): return x.at[i].add(1.5), x.at[::2].set(0)
scatter_arguments = shapes((9, 3)) + shapes((4,), dtype=jnp.int32)
def einsum(x, y): return jnp.einsum("bij,bjk->ikb", x, y)
einsum_arguments = shapes((3, 4, 5), (3, 5, 2))
def fourier(x): return jnp.abs(jnp.fft.rfft(x))
fourier_arguments = shapes((4, 16))
def statistics(x): return jnp.median(x), jnp.logaddexp(x, 1.0), nn.logsumexp(x), jnp.quantile(x, 0.3)
statistics_arguments = shapes((15,))
def special(x): return jax.scipy.special.erf(x), jnp.log1p(jnp.abs(x)), jnp.expm1(x), jnp.arctan2(x, 1.0)
special_arguments = shapes((40,))
"""

TORCH_FILE = """
import torch
from torch import nn
from torch.nn import functional as F
torch.manual_seed(0)
weight = torch.randn(16, 4)

class Block(nn.Module):
    def __init__(self, channels, stride=1):
        super().__init__()
        self.convolution = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.norm.running_mean.normal_(0, 0.1)
        self.norm.running_var.uniform_(0.5, 1.5)
    def forward(self, x): return F.relu(self.norm(self.convolution(x)) + x)

class Attention(nn.Module):
    def __init__(self, is_causal=False):
        super().__init__()
        self.qkv, self.out, self.is_causal = nn.Linear(32, 96), nn.Linear(32, 32), is_causal
    def forward(self, x):
        q, k, v = (t.unflatten(-1, (4, 8)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        return self.out(y.transpose(1, 2).flatten(2))

class Cell(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.cell = kind(8, 12, 2, batch_first=True)
    def forward(self, x): return self.cell(x)[0]

class Cache(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(4, 8))
    def forward(self, x):
        self.seen.mul_(0.5).add_(x)
        return self.seen.tanh()

class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, 32), nn.Parameter(torch.randn(10, 32))
        self.layer, self.head = nn.TransformerEncoderLayer(32, 4, 64, 0, batch_first=True), nn.Linear(32, 50)
    def forward(self, ids): return self.head(self.layer(self.tokens(ids) + self.places[: ids.shape[1]]))

mlp = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4), nn.Softmax(-1)).eval()
mlp_arguments = (torch.randn(8, 16),)
resnet = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.MaxPool2d(3, 2, 1), Block(8), Block(8),
                       nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)).eval()
resnet_arguments = (torch.randn(1, 3, 32, 32),)
mobilenet = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.Hardswish(), nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.SiLU(),
                          nn.Conv2d(16, 8, 1), nn.Hardsigmoid()).eval()
mobilenet_arguments = (torch.randn(1, 3, 16, 16),)
decoder = nn.Sequential(nn.ConvTranspose2d(4, 3, 3, 2, 1, 1), nn.Upsample(scale_factor=2), nn.Sigmoid()).eval()
decoder_arguments = (torch.randn(1, 4, 5, 5),)
signal = nn.Sequential(nn.Conv1d(2, 6, 5, dilation=2), nn.GELU(), nn.AvgPool1d(2), nn.GroupNorm(2, 6)).eval()
signal_arguments = (torch.randn(1, 2, 40),)
attention = Attention().eval()
attention_arguments = (torch.randn(2, 7, 32),)
causal = Attention(is_causal=True).eval()
causal_arguments = (torch.randn(2, 7, 32),)
encoder = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
encoder_arguments = (torch.randn(2, 6, 32),)
language = Language().eval()
language_arguments = (torch.randint(0, 50, (2, 8)),)
def bert():
    from transformers import BertConfig, BertModel
    torch.manual_seed(1)
    sizes = dict(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64)
    return BertModel(BertConfig(**sizes, max_position_embeddings=16)).eval()
bert_arguments = {"input_ids": torch.randint(0, 60, (1, 9)), "attention_mask": torch.ones(1, 9, dtype=torch.int64)}
def llama():
    from transformers import LlamaConfig, LlamaModel
    torch.manual_seed(1)
    sizes = dict(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
    return LlamaModel(LlamaConfig(**sizes, intermediate_size=64, use_cache=False)).eval()
llama_arguments = {"input_ids": torch.randint(0, 60, (1, 9))}
lstm = Cell(nn.LSTM).eval()
lstm_arguments = (torch.randn(2, 5, 8),)
gru = Cell(nn.GRU).eval()
gru_arguments = (torch.randn(2, 5, 8),)
embedding = nn.Embedding(20, 6).eval()
embedding_arguments = (torch.randint(0, 20, (3, 4)),)
bag = nn.EmbeddingBag(20, 6).eval()
bag_arguments = (torch.randint(0, 20, (3, 4)),)
state = Cache().eval()
state_arguments = (torch.randn(4, 8),)
def several(x): return x.topk(3), x.cumsum(-1), x > 0, x.argmax(-1)
several_arguments = (torch.randn(4, 9),)
def integers(x, y): return x + y, x * y, x // y, x % y
integers_arguments = (torch.randint(-50, 50, (9,)), torch.randint(1, 9, (9,)))
def small(x): return x + x, x.to(torch.int32) * 3
small_arguments = (torch.randint(-50, 50, (9,), dtype=torch.int8),)
half = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32)).half().eval()
half_arguments = (torch.randn(4, 16).half(),)
brain = nn.Sequential(nn.Linear(16, 32), nn.ReLU()).bfloat16().eval()
brain_arguments = (torch.randn(4, 16).bfloat16(),)
double = nn.Sequential(nn.Linear(16, 8), nn.Tanh()).double().eval()
double_arguments = (torch.randn(4, 16).double(),)
def logic(x, y): return x & ~y, x.any(-1), torch.where(x, 1.0, 2.0)
logic_arguments = (torch.rand(4, 9) > 0.5, torch.rand(4, 9) > 0.5)
batch = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 3)).eval()
batch_arguments = (torch.randn(5, 16),)
batch_dynamic_shapes = ({0: torch.export.Dim("n", min=1)},)
def mixer(x, scale): return {"scaled": x @ weight * scale, "mean": x.mean(0)}
mixer_arguments = {"x": torch.empty(6, 16, device="meta"), "scale": torch.empty((), device="meta")}
def gather(x, i): return x.gather(1, i), x.index_select(0, i[0])
gather_arguments = (torch.randn(4, 6), torch.randint(0, 4, (4, 3)))
def scatter(x, i): return torch.zeros(4, 6).scatter_add(1, i, x), F.one_hot(i, 6)
scatter_arguments = (torch.randn(4, 3), torch.randint(0, 6, (4, 3)))
def einsum(x, y): return torch.einsum("bij,bjk->ikb", x, y)
einsum_arguments = (torch.randn(3, 4, 5), torch.randn(3, 5, 2))
def padded(x): return F.pad(x, (1, 2), value=3.0), x.roll(1, 0), x.flip(1), torch.tril(x)
padded_arguments = (torch.randn(4, 6),)
def special(x): return torch.erf(x), torch.log1p(x.abs()), x.clamp(-1, 1), torch.atan2(x, torch.ones(()))
special_arguments = (torch.randn(40),)
def resize(x): return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
resize_arguments = (torch.randn(1, 2, 5, 5),)
def branch(p, x): return torch.cond(p, lambda v: v.sin(), lambda v: v.cos(), (x,))
branch_arguments = (torch.tensor(True), torch.randn(6))
"""

# Calls functions of a file on arrays, as a user of the framework does. The plan is {name: [[file, dtype, shape], …]}.
DIRECT_SCRIPT = """
import importlib.util, json, sys
import numpy as np
path, plan, folder, framework = sys.argv[1:]
specification = importlib.util.spec_from_file_location("functions", path)
module = importlib.util.module_from_spec(specification)
specification.loader.exec_module(module)
import ml_dtypes

def read(file, dtype, shape):
    array = np.fromfile(file, getattr(ml_dtypes, dtype, None) or np.dtype(dtype)).reshape(shape)
    if framework == "jax":
        import jax
        return jax.numpy.asarray(array)
    import torch
    if dtype == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())

def flatten(value):
    if framework == "jax":
        import jax
        return jax.tree_util.tree_flatten(value)
    from torch.utils import _pytree
    return _pytree.tree_flatten(value)

def unflatten(values, spec):
    if framework == "jax":
        import jax
        return jax.tree_util.tree_unflatten(spec, values)
    from torch.utils import _pytree
    return _pytree.tree_unflatten(values, spec)

for name, entries in json.load(open(plan)).items():
    function, arguments = getattr(module, name), getattr(module, name + "_arguments")
    values = unflatten([read(*entry) for entry in entries], flatten(arguments)[1])
    if framework == "torch":
        import torch
        torch.set_grad_enabled(False)
        if not isinstance(function, torch.nn.Module) and name in ("bert", "llama"):
            function = function()
    results = function(**values) if isinstance(values, dict) else function(*values)
    for index, result in enumerate(item for item in flatten(results)[0] if item is not None):
        if framework == "torch":
            result = result.detach().to(torch.float64 if result.is_floating_point() else result.dtype).numpy()
        result = np.asarray(result)
        wide = result if result.dtype.kind in "iub" else result.astype(np.float64)
        np.save(f"{folder}/{name}_{index}.npy", wide)
"""
