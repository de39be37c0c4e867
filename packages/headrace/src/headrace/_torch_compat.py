"""The parts of torch that torch doesn't promise to keep, each with what is done if it is gone.

Only for `torch.utils._pytree` nothing stands in: torchvision, too, needs it.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
import torch.utils.data
from torch.overrides import has_torch_function
from torch.utils._pytree import tree_leaves, tree_map

# Where torchcodec has its functions for image files.
TORCHCODECS_IMAGES = "torchcodec.decoders._image_decoders"


def set_worker_info(worker: int, workers: int, seed: int, dataset: Any) -> None:
    """Sets what `torch.utils.data.get_worker_info()` returns in this process from now on."""
    fields = {"id": worker, "num_workers": workers, "seed": seed, "dataset": dataset}
    info: Any = types.SimpleNamespace(**fields)
    public: Any = torch.utils.data
    with suppress(ImportError, AttributeError, TypeError):
        from torch.utils.data._utils import worker as module

        kind: Any = module.WorkerInfo
        info = kind(**fields)
        module._worker_info = info
    if public.get_worker_info() is not info:
        public.get_worker_info = lambda: info


# The class of torch's iterators of a DataLoader, for code that asks for it.
LoaderIteratorBase: Any = getattr(torch.utils.data.dataloader, "_BaseDataLoaderIter", Iterator)


def processes_of(iterator: Any) -> list[Any]:
    """The worker processes of an iterator of torch's DataLoader, or [] if there are none."""
    return list(getattr(iterator, "_workers", ()))


def shut_down(iterator: Any) -> None:
    """Ends the worker processes of an iterator of torch's DataLoader. Without a way to, they end with it."""
    end = getattr(iterator, "_shutdown_workers", None)
    if end is not None:
        end()


def default_collate_functions() -> dict[Any, Callable[..., Any]]:
    """The table that `default_collate` follows, by type: documented, but not exported. Empty: it is gone, and
    batches are copied once more on their way."""
    functions: dict[Any, Callable[..., Any]] = getattr(_collation(), "default_collate_fn_map", {})
    return functions


def _collation() -> Any:
    """torch's module of `default_collate`, or None if it is gone. It is asked for with every batch: an import
    statement would take longer than to collate a number."""
    return sys.modules.get("torch.utils.data._utils.collate")


# The table as it was when it was last looked through, with no functions but torch's and Headrace's.
_torchs_table: dict[Any, Callable[..., Any]] = {}


def default_collation_changed() -> bool:
    """Returns whether the table has functions that aren't torch's, as its documentation of `collate`
    suggests: then nothing is known of what `default_collate` does."""
    global _torchs_table
    functions = default_collate_functions()
    if functions == _torchs_table:
        return False
    modules = (getattr(function, "__module__", None) or "" for function in functions.values())
    changed = any(module.partition(".")[0] not in ("torch", "headrace") for module in modules)
    if not changed:
        _torchs_table = dict(functions)
    return changed


def collate(samples: list[Any], functions: dict[Any, Callable[..., Any]]) -> Any:
    """`default_collate` by another table than torch's own. Only if `default_collate_functions` has one."""
    return _collation().collate(samples, collate_fn_map=functions)


# The number of active `TorchDispatchMode`s, each of which is to see the operators that torch calls.
_dispatch_modes: Callable[[], int] = getattr(torch._C, "_len_torch_dispatch_stack", int)
_NO_TENSOR = (None,)


def is_followed() -> bool:
    """Returns whether a compiler, a trace or a mode follows the calls of torch's functions now."""
    if torch.compiler.is_compiling() or torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        return True
    return has_torch_function(_NO_TENSOR) or _dispatch_modes() > 0


def makes_tensors_on_cpu() -> bool:
    """True if nothing follows torch's calls, such as a default device, and tensors are made on the CPU."""
    return not is_followed() and torch.empty(0).device.type == "cpu"


def implementations(of: str) -> Any:
    """The module of torchvision's implementations for PIL images ("pil") or, of v1's functions, for tensors
    ("tensor"), or None if it is gone."""
    try:
        return importlib.import_module(f"torchvision.transforms._functional_{of}")
    except ImportError:
        return None


def kernels_of(functional: Any) -> dict[Any, Any]:
    """The kernels of a function of torchvision's v2 by class, which may be replaced in it. {}: `functional`
    is no such function, or that is gone."""
    try:
        from torchvision.transforms.v2.functional import _utils

        kernels: dict[Any, Any] = _utils._KERNEL_REGISTRY[functional]
    except (ImportError, AttributeError, KeyError, TypeError):
        return {}
    return kernels


# Each function below replaces something. It returns a function that puts the original back unless the program
# has replaced it since, or None if there is no such thing, or it isn't the library's own any more.
Build = Callable[[Callable[..., Any]], Callable[..., Any]]
PutBack = Callable[[], None]


def replace_implementation(of: str, name: str, build: Build) -> PutBack | None:
    """Has torchvision's functions call what `build` makes of their implementation, as of `implementations`.
    The public functions, which user code may hold, compare, pickle or script, stay the same objects;
    TorchScript compiles the original."""
    functions = implementations(of)
    original = getattr(functions, name, None)
    if original is None:
        return None
    function: Any = build(original)
    function.__prepare_scriptable__ = lambda: original
    return replace_attribute(functions, name, function)


def replace_kernel(functional: Any, cls: type, build: Build) -> PutBack | None:
    """Has a function of torchvision's v2 call what `build` makes of its kernel for `cls`. torchvision has a
    public way for classes of one's own only."""
    kernels = kernels_of(functional)
    return replace_item(kernels, cls, build(kernels[cls])) if cls in kernels else None


def replace_item(table: Any, key: Any, value: Any) -> PutBack:
    """Replaces the value of a key."""
    original = table[key]
    table[key] = value

    def put_back() -> None:
        if table.get(key) is value:
            table[key] = original

    return put_back


def replace_attribute(owner: Any, name: str, value: Any) -> PutBack:
    """Replaces an attribute."""
    original = vars(owner).get(name)
    setattr(owner, name, value)

    def put_back() -> None:
        if vars(owner).get(name) is not value:
            return
        if original is None:
            delattr(owner, name)
        else:
            setattr(owner, name, original)

    return put_back


class Replacement:
    """A function in place of one of torch's, which it gets before the arguments, and equal to that: a table
    of functions, of the program's or of torch's, that has one has the other. It is copied and pickled as
    torch's own, which is called instead if a `TorchFunctionMode` is to see it.
    """

    def __init__(self, original: Any, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, original, updated=())
        self._original, self._function = original, functools.partial(function, original)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        called = self._original if has_torch_function(_NO_TENSOR) else self._function
        return called(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original

    def __hash__(self) -> int:
        return hash(self._original)

    def __repr__(self) -> str:
        return repr(self._original)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def __reduce__(self) -> Any:
        return self._original.__reduce__()


class _MethodReplacement(Replacement):
    """The same of a method, which is bound; functions of torch never are."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


def replace_function(name: str, function: Callable[..., Any]) -> PutBack | None:
    """Has `torch.NAME` call a function with torch's own before its arguments; TorchScript compiles that."""
    if not isinstance(getattr(torch, name), types.BuiltinFunctionType):
        return None
    return _replace_builtin(torch, name, "aten", function)


def replace_method(name: str, function: Callable[..., Any]) -> PutBack | None:
    """The same for a method of `torch.Tensor`, and its subclasses."""
    original = getattr(torch.Tensor, name, None)
    if not isinstance(original, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return None
    return replace_attribute(torch.Tensor, name, _MethodReplacement(original, function))


def find_image_op(name: str) -> Any:
    """Torchvision's op `torch.ops.image.NAME`, or None if there is none. The first time takes a while."""
    return getattr(torch.ops.image, name, None)


def replace_image_op(name: str, function: Callable[..., Any]) -> PutBack | None:
    """Has torchvision's functions for image files call a function with their op `torch.ops.image.NAME` before
    the arguments. The functions stay the same objects."""
    if not isinstance(find_image_op(name), torch._ops.OpOverloadPacket):
        return None
    return _replace_builtin(torch.ops.image, name, "image", function)


def replace_torchcodecs_jpeg_op(function: Callable[..., Any]) -> PutBack | None:
    """The same for torchcodec's functions and its op for JPEGs, if the program has imported torchcodec."""
    module = sys.modules.get(TORCHCODECS_IMAGES)
    original = getattr(module, "_decode_jpeg", None)
    if not isinstance(original, torch._ops.OpOverload) or original.namespace != "torchcodec_ns":
        return None
    return replace_attribute(module, "_decode_jpeg", Replacement(original, function))


def torchcodecs_decode_image() -> Callable[..., Any] | None:
    """`torchcodec.decoders.decode_image`, or None if the program hasn't imported it, or has replaced it."""
    module = sys.modules.get(TORCHCODECS_IMAGES)
    function = getattr(module, "decode_image", None)
    if not isinstance(function, types.FunctionType) or function.__code__.co_name != "decode_image":
        return None
    return function if function.__globals__ is vars(module) else None


def _replace_builtin(owner: Any, name: str, space: str, function: Callable[..., Any]) -> PutBack | None:
    try:
        from torch.jit._builtins import _register_builtin
    except ImportError:
        return None
    replacement = Replacement(getattr(owner, name), function)
    _register_builtin(replacement, f"{space}::{name}")
    _builtins.append(replacement)  # TorchScript knows it by its id
    return replace_attribute(owner, name, replacement)


_builtins: list[Any] = []


def find_call_change(module: torch.nn.Module) -> str | None:
    """Returns why calling `module` may do more than `module.forward`, or None if it doesn't. If torch
    doesn't report hooks for all modules, there may be some."""
    attributes, common = vars(module), vars(torch.nn.modules.module)
    if attributes.get("_forward_hooks") or attributes.get("_forward_pre_hooks"):
        return "has forward hooks"
    forward = common.get("_global_forward_hooks", True) or common.get("_global_forward_pre_hooks", True)
    if forward or common.get("_global_backward_hooks") or common.get("_global_backward_pre_hooks"):
        return "there are hooks for all modules"
    if attributes.get("_compiled_call_impl") is not None:
        return "is compiled"
    called = getattr(type(module), "_call_impl", None)
    if called is not getattr(torch.nn.Module, "_call_impl", None) or "_call_impl" in attributes:
        return "_call_impl replaced"
    return None


_changes = itertools.count(1)


def changes_of(tensor: torch.Tensor) -> int:
    """A number that goes up with every change that torch makes to a tensor; 0 for an inference tensor, which
    is not followed. If torch does not report it, every call gives another number."""
    if tensor.is_inference():
        return 0
    return int(getattr(tensor, "_version", next(_changes)))


def was_forked_in_use(module: Any) -> bool:
    """Returns whether this process was forked from one that had used an accelerator, by the accelerator's
    module of torch. False if that doesn't report it: using it is an error of torch's then."""
    forked = getattr(module, "_is_in_bad_fork", None)
    return forked is not None and bool(forked())


def leaves_of(value: Any) -> list[Any]:
    """Returns the items of a nested batch that are no containers of a kind that torch knows, in order."""
    leaves: list[Any] = tree_leaves(value)
    return leaves


def pin_memory(data: Any) -> Any:
    """`data` with its tensors in pinned memory, as torch's DataLoader gives it; containers of types that
    torch knows are looked into, and objects with a method `pin_memory` pin themselves."""
    try:
        from torch.utils.data._utils.pin_memory import pin_memory as by_torch
    except ImportError:
        return tree_map(lambda leaf: leaf.pin_memory() if hasattr(leaf, "pin_memory") else leaf, data)
    return by_torch(data)  # type: ignore[no-untyped-call]
