"""Cases: torch tensors, nested tensors, TensorDict."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from tensordict import LazyStackedTensorDict, NonTensorData, NonTensorStack, TensorDict

Case = Callable[[], dict[Any, Any]]
CASES: dict[str, Case] = {}

CODES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "bfloat16"]
CODES += ["float32", "float64", "complex32", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"]
CODES += ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"]


def of_bits(code: str, *shape: int) -> torch.Tensor:
    """Random bits, NaN payloads included, read as a dtype."""
    dtype = getattr(torch, code)
    if 0 in shape:
        return torch.zeros(shape, dtype=dtype)
    data = np.random.default_rng(3).integers(0, 256, int(np.prod(shape)) * dtype.itemsize, dtype=np.uint8)
    if dtype is torch.bool:
        data &= 1
    return torch.from_numpy(data).view(dtype).reshape(shape)


def jagged(*lengths: int, inner: tuple[int, ...] = (2,), dtype: Any = torch.float32) -> torch.Tensor:
    parts = [torch.arange(n * int(np.prod(inner))).reshape(n, *inner).to(dtype) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


def strided(*lengths: int) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(n, 2) * n for n in lengths], layout=torch.strided)


def td(values: dict[str, Any], *batch_size: int, **options: Any) -> TensorDict:
    return TensorDict(values, batch_size=list(batch_size), **options)


for code in CODES:
    CASES[f"vllm-omni#5755: tensor {code}"] = lambda c=code: {
        "dense": of_bits(c, 3, 4),
        "rows": [of_bits(c, n) for n in (2, 0, 5)],
        "equal rows": [of_bits(c, 3), of_bits(c, 3)],
        "0-d": of_bits(c, 1)[0],
        "empty": torch.zeros(0, 3, dtype=getattr(torch, c)),
    }

CASES |= {
    "vllm#16866: bfloat16 keeps every bit": lambda: {
        "all": torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.bfloat16),
        "matrix": torch.tensor([[0x7FC1, -1, -32768, 0]], dtype=torch.int16).view(torch.bfloat16),
    },
    "float8 keeps every bit": lambda: {
        c: torch.arange(256, dtype=torch.int16).to(torch.uint8).view(getattr(torch, c)) for c in CODES if "float8" in c
    },
    "tensor views store their own elements": lambda: {
        "part": torch.arange(1_000_000)[10:13],
        "column": torch.arange(12).reshape(3, 4)[:, 1],
        "strided": torch.arange(20)[::3],
        "t": torch.arange(6).reshape(2, 3).t(),
        "expand": torch.arange(3).expand(4, 3),
        "permuted": torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
        "channels last": torch.zeros(1, 2, 3, 3).to(memory_format=torch.channels_last),
        "rows": list(torch.arange(12).reshape(3, 4)),
        "unbound columns": list(torch.arange(12).reshape(3, 4).unbind(1)),
        "bf16 part": torch.ones(10, 10).bfloat16()[2:4, ::2],
    },
    "lazy conjugate and negative": lambda: {
        "conj": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "imag of conj": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        "rows": [torch.tensor([1j]).conj(), torch.tensor([2j])],
    },
    "tensor shapes": lambda: {
        "0-d": [torch.tensor(1.5), torch.tensor(2.5)],
        "zero": torch.zeros(3, 0, 2),
        "rows": [torch.zeros(n, 3) for n in (2, 0, 1)],
        "ranks": [torch.zeros((1,) * n) for n in range(5)],
        "tuple": (torch.zeros(1), torch.ones(2)),
    },
    "tensor rows with None and other types": lambda: {
        "None": [None, torch.zeros(2), None, torch.zeros(0)],
        "dtypes": [torch.zeros(2), torch.zeros(2, dtype=torch.int64)],
        "arrays": [torch.zeros(2), np.zeros(2, "f4")],
        "numbers": [torch.tensor(1), 1, 1.0],
        "lists": [[torch.zeros(1), torch.zeros(2)], [], None],
    },
    "sglang#29656: Size and tuple": lambda: {
        "s": (2, 3),
        "z": torch.Size([2, 3]),
        "n": ((1,), [2]),
        "column": [torch.Size([1]), torch.Size([])],
        "mixed": [torch.Size([1]), (1,), [1]],
    },
    "dicts of tensors with None and missing keys": lambda: {
        "multi_modal_inputs": [
            {"pixel_values": torch.ones(4, 6), "image_grid_thw": torch.tensor([[1, 2, 2]])},
            None,
            {"pixel_values": None, "image_grid_thw": torch.zeros(0, 3, dtype=torch.int64)},
            {"image_grid_thw": torch.tensor([[1, 2, 2], [1, 4, 2]])},
            {},
            {"pixel_values": [torch.zeros(2).bfloat16(), torch.ones(1).bfloat16()], "deep": {"a": torch.tensor(1)}},
        ]
    },
    "TransferQueue#106: pixel values of megabytes": lambda: {
        "multi_modal_inputs": [
            {"pixel_values": of_bits("float32", 512 + i, 1176), "image_grid_thw": torch.tensor([[1, 16, 32 + i]])}
            for i in range(3)
        ]
    },
    "prime-rl#1923: pixel values as float32": lambda: {"pixel_values": [of_bits("float32", n, 1176) for n in (4, 9)]},
    "Mooncake#3336: jagged nested": lambda: {"three": jagged(3, 1, 2), "empty row": jagged(2, 0), "one": jagged(4)},
    "jagged nested dtypes and shapes": lambda: {
        "bf16": jagged(1, 3, dtype=torch.bfloat16),
        "i8": jagged(2, 2, dtype=torch.int64, inner=()),
        "3-d": jagged(1, 2, inner=(2, 3)),
        "all empty": jagged(0, 0),
        "equal": jagged(2, 2),
        "bool": jagged(1, 2, dtype=torch.bool),
    },
    "jagged nested with lengths": lambda: {
        "narrowed": torch.nested.narrow(
            torch.arange(20.0).reshape(2, 10), 1, torch.tensor([0, 3]), torch.tensor([4, 2]), layout=torch.jagged
        )
    },
    "jagged nested from values and offsets": lambda: {
        "a": torch.nested.nested_tensor_from_jagged(torch.arange(6.0), torch.tensor([0, 2, 2, 6]))
    },
    "strided nested": lambda: {"a": strided(2, 3), "b": strided(1), "c": strided(2, 2)},
    "nested tensors in metadata": lambda: {"m": [{"n": jagged(1, 2)}, {"n": strided(1, 2)}, None]},
    "TensorDict": lambda: {
        "td": td(
            {"obs": torch.ones(3, 2), "next": {"obs": torch.zeros(3, 2), "done": torch.zeros(3, dtype=torch.bool)}}, 3
        )
    },
    "TensorDict corners": lambda: {
        "empty": td({}),
        "empty batch": td({}, 4),
        "no batch": td({"a": torch.tensor(1)}),
        "2-d batch": td({"a": torch.zeros(2, 3, 1)}, 2, 3),
        "zero batch": td({"a": torch.zeros(0, 3)}, 0),
        "nested batch": td({"a": td({"b": torch.zeros(2, 3)}, 2, 3)}, 2),
        "order": td({"z": torch.zeros(1), "a": torch.ones(1)}, 1),
        "bf16": td({"a": torch.ones(2).bfloat16()}, 2),
        "jagged": td({"a": jagged(1, 2)}, 2),
    },
    "TensorDict names and device": lambda: {
        "names": td({"a": torch.zeros(2, 3)}, 2, 3, names=["batch", "time"]),
        "device": td({"a": torch.zeros(2)}, 2, device="cpu"),
    },
    "TensorDict non-tensor data": lambda: {
        "str": td({"s": "hello", "a": torch.zeros(2)}, 2),
        "object": td({"m": NonTensorData({"k": [1, (2,)]}, batch_size=[2])}, 2),
        "stack": td({"s": NonTensorStack("a", "b", "c")}, 3),
        "None": td({"n": NonTensorData(None)}),
        "array": td({"n": NonTensorData(np.arange(3, dtype="u2"))}),
    },
    "TensorDict rows": lambda: {
        "rows": [td({"a": torch.zeros(n)}, n) for n in (2, 0, 1)] + [None],
        "meta": {"deep": [td({"a": torch.ones(1)})]},
    },
    "TensorDict lazy stack": lambda: {
        "ragged": LazyStackedTensorDict(td({"a": torch.zeros(2)}), td({"a": torch.ones(3)})),
        "dim 1": LazyStackedTensorDict(td({"a": torch.zeros(2)}, 2), td({"a": torch.ones(2)}, 2), stack_dim=1),
    },
    "tensors and arrays of one memory": lambda: (lambda a: {"array": a, "tensor": torch.from_numpy(a)})(np.arange(4)),
    "large tensors": lambda: {"a": of_bits("bfloat16", 1000, 1003), "b": [of_bits("int64", 70_001)] * 1},
}
