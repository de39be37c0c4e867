"""Code of the user's own whose bytecode proves what it does.

A class around a transform, a subclass that changes nothing, a function that hands its image on or computes
with values: each is compared with code that is compiled here. Whatever looks different in any way is unknown.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from headrace._torch_compat import find_call_change

# What a subclass may have of its own, besides new methods and constants, and still do what its base does.
HARMLESS = {
    *("__module__", "__qualname__", "__doc__", "__init__", "__repr__", "__str__", "extra_repr"),
    *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__orig_bases__"),
    *("__dict__", "__weakref__", "__parameters__", "__type_params__", "__abstractmethods__", "_abc_impl"),
    *("__static_attributes__", "__firstlineno__"),
}
CONSTANTS = (int, float, str, tuple, list, dict, type(None))

# Instructions that only move values about, and methods of tensors that treat every value by itself. No
# powers: the last bits of those depend on a value's place in memory.
MOVES = {"RESUME", "NOP", "PUSH_NULL", "PRECALL", "CALL", "CALL_METHOD", "RETURN_VALUE", "UNARY_NEGATIVE"}
LOCALS = ("LOAD_FAST", "STORE_FAST")
NUMBERS = {"LOAD_CONST", "LOAD_SMALL_INT"}
ATTRIBUTES = {"LOAD_METHOD", "LOAD_ATTR"}
ARITHMETIC = {"+", "-", "*", "/", "+=", "-=", "*=", "/="}
# Python 3.10 has an instruction for each.
MOVES |= {f"{kind}_{name}" for kind in ("BINARY", "INPLACE") for name in ("ADD", "SUBTRACT", "MULTIPLY")}
MOVES |= {"BINARY_TRUE_DIVIDE", "INPLACE_TRUE_DIVIDE"}
METHODS = {f"{name}{place}" for name in ("add", "sub", "mul", "div", "neg", "clamp") for place in ("", "_")}

UNUSUAL = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)

Shape = tuple[int, tuple[tuple[str, type, Any], ...]]


def plain_base(cls: type, known: Callable[[type], bool]) -> type | None:
    """The nearest base of `cls` for which `known` holds, if `cls` adds nothing that could change what that
    does: no method of its, no special method, no property. None: there is no such base."""
    mro = cls.__mro__
    place = next((i for i, each in enumerate(mro) if i and known(each)), None)
    if place is None or mro[place:] != mro[place].__mro__ or type(cls) is not type(mro[place]):
        return None
    own = [(name, value) for each in mro[:place] for name, value in vars(each).items()]
    return mro[place] if all(_adds_only(mro[place], name, value) for name, value in own) else None


def _adds_only(base: type, name: str, value: Any) -> bool:
    if name in HARMLESS:
        return True
    if isinstance(value, staticmethod) and value.__func__ is getattr(base, name, None):
        return True  # torchvision's v2 gives its get_params to each subclass
    new = not hasattr(base, name) and not (name.startswith("__") and name.endswith("__"))
    return new and (type(value) is FunctionType or isinstance(value, CONSTANTS))


def wrapped_transform(transform: Any) -> Any:
    """What an object calls with the image, and does nothing besides: ``return self.transforms(image)``. None:
    it isn't such an object."""
    cls, is_module = type(transform), isinstance(transform, nn.Module)
    if is_module and (cls.__call__ is not nn.Module.__call__ or cls.__getattr__ is not nn.Module.__getattr__):
        return None
    method = inspect.getattr_static(cls, "forward" if is_module else "__call__", None)
    reads = inspect.getattr_static(cls, "__getattribute__")
    if type(method) is not FunctionType or reads is not object.__getattribute__:
        return None
    shape, names = _shape(method, any_name=True), method.__code__.co_names
    if shape not in WRAPPERS or len(names) != 1 or not hasattr(transform, "__dict__"):
        return None
    attributes = vars(transform)
    if hasattr(cls, names[0]) or (is_module and ("forward" in attributes or find_call_change(transform))):
        return None
    modules = attributes.get("_modules", {}) if is_module else {}
    return attributes.get(names[0], modules.get(names[0]))


def hands_on(function: Any) -> bool:
    """Whether `function` returns its argument."""
    return _shape(function) in IDENTITIES


def converts_to_rgb(function: Any) -> bool:
    """Whether `function` returns ``argument.convert("RGB")``, which on an RGB image is a copy of it."""
    return _shape(function) in CONVERSIONS


def computes(function: Any) -> bool:
    """Whether `function` of a tensor does arithmetic with numbers alone: every value by itself."""
    code = _plain_code(function)
    return code is not None and code.co_argcount == 1 and all(map(_is_arithmetic, dis.get_instructions(code)))


def _is_arithmetic(instruction: dis.Instruction) -> bool:
    name = instruction.opname
    if name in NUMBERS:
        return type(instruction.argval) in (int, float)
    if name in ATTRIBUTES:
        return instruction.argval in METHODS
    if name == "BINARY_OP":
        return instruction.argrepr in ARITHMETIC
    return name in MOVES or name.startswith(LOCALS)


def _plain_code(function: Any) -> CodeType | None:
    """The code of a function that takes positional arguments alone and knows no variables but its own."""
    if type(function) is not FunctionType:
        return None
    code = function.__code__
    closed = code.co_freevars or code.co_cellvars or code.co_kwonlyargcount
    # Python 3.10 has no such table: what handles exceptions there are instructions, which are unknown.
    handles = getattr(code, "co_exceptiontable", b"")
    return None if closed or handles or code.co_flags & UNUSUAL else code


def _shape(function: Any, *, any_name: bool = False) -> Shape | None:
    """What a function does, whatever its variables are called; with `any_name` the attribute, too."""
    code = _plain_code(function)
    if code is None:
        return None
    code = code.replace(co_varnames=tuple(f"v{i}" for i in range(len(code.co_varnames))))
    if any_name and len(code.co_names) == 1:
        code = code.replace(co_names=("attribute",))
    steps = ((each.opname, type(each.argval), each.argval) for each in dis.get_instructions(code))
    return code.co_argcount, tuple(steps)


def _directly(self: Any, image: Any) -> Any:
    return self.attribute(image)


def _in_two_steps(self: Any, image: Any) -> Any:
    image = self.attribute(image)
    return image  # noqa: RET504  (as some people write it)


def _by_another_name(self: Any, image: Any) -> Any:
    result = self.attribute(image)
    return result  # noqa: RET504


def _converted_in_two_steps(image: Any) -> Any:
    image = image.convert("RGB")
    return image  # noqa: RET504


WRAPPERS = {_shape(each, any_name=True) for each in (_directly, _in_two_steps, _by_another_name)}
IDENTITIES = {_shape(lambda image: image)}
CONVERSIONS = {_shape(lambda image: image.convert("RGB")), _shape(_converted_in_two_steps)}
