"""User code whose bytecode proves what it does: subclasses that change nothing, and small functions.

`_single_instructions` lists a function's instructions, with one name for those that differ between versions
of Python. `_steps` makes steps of them, which are the same however variables are called: local variables get
numbers, and other names are followed to their objects. A function is known if its steps are those of a
function that is compiled here (`_shape`), or if each step is harmless (`computes`, `maps_images`).
"""

from __future__ import annotations

import builtins
import dis
import inspect
import re
import textwrap
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import product
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
import torchvision.io
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import default_collate
from torchvision import transforms as v1
from torchvision.io import ImageReadMode
from torchvision.transforms import v2

from headrace._torch_compat import find_call_change, torchcodecs_decode_image
from headrace.decoding import Decode, by_torchvision, decode_image
from headrace.records import Mode

MODES: tuple[Mode, ...] = ("RGB", "L")

# What a subclass may have of its own, besides new methods and constants, and still do what its base does.
HARMLESS = {
    *("__module__", "__qualname__", "__doc__", "__init__", "__repr__", "__str__", "extra_repr"),
    *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__orig_bases__"),
    *("__dict__", "__weakref__", "__parameters__", "__type_params__", "__abstractmethods__", "_abc_impl"),
    *("__static_attributes__", "__firstlineno__"),
}
CONSTANTS = (int, float, str, tuple, list, dict, type(None))

# Instructions that `computes` and `maps_images` allow: they load a number, or compute with tensors.
CONSTANTS_LOADED_BY = {"LOAD_CONST", "LOAD_SMALL_INT"}
ARITHMETIC_INSTRUCTIONS = {"LOAD", "STORE", "CALL", "CALL_FUNCTION", "RETURN_VALUE", "UNARY_NEGATIVE"}
# BINARY_OP has its operator as its argument. Python 3.10 has an instruction for each.
OPERATORS = {"+", "-", "*", "/", "+=", "-=", "*=", "/="}
for _operator in ("ADD", "SUBTRACT", "MULTIPLY", "TRUE_DIVIDE"):
    ARITHMETIC_INSTRUCTIONS |= {f"BINARY_{_operator}", f"INPLACE_{_operator}"}
# Methods of tensors that treat every value by itself. The last bits of a power depend on its place in memory.
VALUEWISE_METHODS = {"add", "sub", "mul", "div", "neg", "clamp"}
VALUEWISE_METHODS |= {f"{name}_" for name in VALUEWISE_METHODS}
# Further instructions, besides JUMP_…, of functions that go through several images.
LOOP_INSTRUCTIONS = {
    *("GET_ITER", "FOR_ITER", "END_FOR", "POP_ITER", "POP_TOP", "SWAP", "NOT_TAKEN", "RERAISE"),
    *("BUILD_LIST", "BUILD_TUPLE", "LIST_APPEND", "LIST_TO_TUPLE", "MAKE_FUNCTION", "LOAD_CLOSURE"),
    *("SET_FUNCTION_ATTRIBUTE", "KW_NAMES", "CALL_KW", "CALL_FUNCTION_KW"),
}
# Functions of Python, torch and torchvision that they may call with whatever they have.
HARMLESS_FUNCTIONS = (
    *(torch.stack, list, tuple, map, v1.functional.to_tensor, v1.functional.pil_to_tensor),
    *(v1.functional.normalize, v1.functional.convert_image_dtype, v2.functional.to_image),
    *(v2.functional.pil_to_tensor, v2.functional.to_dtype, v2.functional.normalize),
)

# What a module has imported is called in another way than what it has not, as in the cells of a notebook.
SAME_AS = {"LOAD_METHOD": "LOAD_ATTR", "CALL_METHOD": "CALL_FUNCTION"}
IDLE_INSTRUCTIONS = {"CACHE", "COPY_FREE_VARS", "NOP", "PRECALL", "PUSH_NULL", "RESUME"}

# What may read a function's variables without naming them.
LOOKING_AROUND = {"locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe", "stack", "super"}

# Flags of functions that take any number of arguments, or don't run when they are called.
UNUSUAL_FLAGS = (
    inspect.CO_VARARGS
    | inspect.CO_VARKEYWORDS
    | inspect.CO_GENERATOR
    | inspect.CO_COROUTINE
    | inspect.CO_ASYNC_GENERATOR
)

# An instruction and its argument: (LOAD, STORE or DELETE, number of a local variable), or (OBJECT, the object
# that another name stands for now, or UNKNOWN).
Instruction = tuple[str, Any]
OBJECT = "what a name stands for"
UNKNOWN = object()


def plain_base(cls: type, known: Callable[[type], bool]) -> type | None:
    """The nearest base of `cls` for which `known` holds, or None if `cls` could do anything else."""
    mro = cls.__mro__
    place = next((i for i, each in enumerate(mro) if i and known(each)), None)
    if place is None or mro[place:] != mro[place].__mro__ or type(cls) is not type(mro[place]):
        return None
    return None if _changes(cls, mro[place]) else mro[place]


def _changes(cls: type, base: type) -> bool:
    """Returns whether `cls` has what could change what `base` does: methods that `base` has, special methods,
    properties, and other values of its constants."""
    others = [each for each in cls.__mro__ if each not in base.__mro__]
    return not all(_adds_only(base, *own) for each in others for own in vars(each).items())


def _adds_only(base: type, name: str, value: Any) -> bool:
    if name in HARMLESS:
        return True
    if isinstance(value, staticmethod) and value.__func__ is getattr(base, name, None):
        return True  # torchvision's v2 gives its get_params to each subclass
    new = not hasattr(base, name) and not (name.startswith("__") and name.endswith("__"))
    return new and (type(value) is FunctionType or isinstance(value, CONSTANTS))


def wrapped_transform(transform: Any) -> Any:
    """The transform in an object that does nothing but ``return self.transforms(image)``, or None."""
    cls, is_module = type(transform), isinstance(transform, nn.Module)
    if is_module and (cls.__call__ is not nn.Module.__call__ or cls.__getattr__ is not nn.Module.__getattr__):
        return None
    method = inspect.getattr_static(cls, "forward" if is_module else "__call__", None)
    reads = inspect.getattr_static(cls, "__getattribute__")
    if type(method) is not FunctionType or reads is not object.__getattribute__:
        return None
    names = method.__code__.co_names
    if len(names) != 1 or _shape(method, names[0]) not in WRAPPERS or not hasattr(transform, "__dict__"):
        return None
    attributes = vars(transform)
    if hasattr(cls, names[0]) or (is_module and ("forward" in attributes or find_call_change(transform))):
        return None
    modules = attributes.get("_modules", {}) if is_module else {}
    return attributes.get(names[0], modules.get(names[0]))


def hands_on(function: Any) -> bool:
    """Returns whether `function` returns its argument."""
    return _shape(function) in IDENTITIES


def conversion_of(function: Any) -> Mode | None:
    """The mode in the ``argument.convert(mode)`` that `function` returns, or None."""
    return next((mode for mode in MODES if _shape(function, mode) in CONVERSIONS), None)


def reading_mode_of(function: Any) -> Mode | None:
    """The mode in the ``Image.open(path).convert(mode)`` that `function` of a path returns, or None."""
    return next((mode for mode in MODES if _shape(function, mode) in READERS), None)


def decoder_of(function: Any) -> Decode | None:
    """The function of a file's bytes that makes the tensor which `function` of a path returns, if that is
    ``decode_image(path, mode="RGB")``: torchvision's, ours or torchcodec's; else None."""
    theirs = torchcodecs_decode_image()
    if type(function) is partial:
        called, given = function.func, function.keywords
        if function.args:
            return None
        if theirs is not None and called is theirs:
            return theirs if given in ({}, {"mode": "RGB"}) else None
        rgb = given in ({"mode": "RGB"}, {"mode": ImageReadMode.RGB})
        return by_torchvision if rgb and any(called is each for each in DECODING) else None
    if theirs is not None and (function is theirs or _shape(function) in _readers_by(theirs)):
        return theirs
    return by_torchvision if _shape(function) in TENSOR_READERS else None


def turns_upright(function: Any) -> bool:
    """Returns whether `function` is Pillow's `exif_transpose`, or returns that function's result."""
    return function is ImageOps.exif_transpose or _shape(function) in TURNERS


def computes(function: Any) -> bool:
    """Returns whether `function` of a tensor does arithmetic with numbers alone: every value by itself."""
    code = _plain_code(function)
    if code is None or code.co_argcount != 1 or _handlers(code):
        return False
    return all(map(_is_arithmetic, _steps(function)))


def _is_arithmetic(step: Instruction) -> bool:
    """Returns whether a step is of arithmetic with numbers, value by value."""
    name, value = step
    if name in CONSTANTS_LOADED_BY:
        return type(value) in (int, float)
    if name == "LOAD_ATTR":
        return value in VALUEWISE_METHODS
    if name == "BINARY_OP":
        return value in OPERATORS
    return name in ARITHMETIC_INSTRUCTIONS


def maps_images(function: Any, known: Callable[[Any], bool]) -> bool:
    """Returns whether `function` of several images, or tensors, calls nothing but torch.stack, functions that
    treat values one by one, and transforms for which `known` holds. It may leave out some."""
    if function is torch.stack:
        return True
    if type(function) is not FunctionType or function.__code__.co_argcount != 1:
        return False
    return _all_steps_map(function, function.__code__, known)


def _all_steps_map(function: FunctionType, code: CodeType, known: Callable[[Any], bool]) -> bool:
    """Returns whether `maps_images` allows each step of `function`, or of a list comprehension in it."""
    if code.co_flags & UNUSUAL_FLAGS or code.co_kwonlyargcount or code.co_cellvars:
        return False
    if not all(_is_of_mapping(step, known) for step in _steps(function, code)):
        return False
    # Before Python 3.12 a comprehension is a function of its own, and its code a constant of this one.
    for inner in (constant for constant in code.co_consts if isinstance(constant, CodeType)):
        if inner.co_name != "<listcomp>" or not _all_steps_map(function, inner, known):
            return False
    return True


def _is_of_mapping(step: Instruction, known: Callable[[Any], bool]) -> bool:
    """Returns whether a step is of arithmetic or a loop, or names what functions that map images may use."""
    name, value = step
    if name == OBJECT:
        return _is_plain(value) or any(value is each for each in HARMLESS_FUNCTIONS) or known(value)
    if name in CONSTANTS_LOADED_BY:
        return isinstance(value, CodeType) or _is_plain(value)
    return name in LOOP_INSTRUCTIONS or name.startswith("JUMP_") or _is_arithmetic(step)


def _is_plain(value: Any) -> bool:
    """Returns whether `value` is a number, a name, a dtype, or several of those."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (int, float, bool, str, torch.dtype)


def collates_first(function: Any) -> bool:
    """Returns whether `function` does nothing with its only argument but to call torch's `default_collate`
    with it once, such as ``lambda samples: mixup(*default_collate(samples))``."""
    if type(function) is not FunctionType:
        return False
    code = function.__code__
    if code.co_argcount != 1 or code.co_kwonlyargcount or code.co_flags & UNUSUAL_FLAGS:
        return False
    if code.co_varnames[0] in code.co_cellvars or not LOOKING_AROUND.isdisjoint(code.co_names):
        return False
    steps = _steps(function)
    # The argument is local variable number 0.
    uses = [at for at, step in enumerate(steps) if step in (("LOAD", 0), ("STORE", 0), ("DELETE", 0))]
    repeats = any(name.startswith(("FOR_ITER", "JUMP_BACKWARD", "JUMP_ABSOLUTE")) for name, _ in steps)
    if len(uses) != 1 or repeats:
        return False
    # Nothing lies between the function, its one argument and the call.
    at = uses[0]
    before, use, after = steps[at - 1], steps[at], steps[at + 1]
    called_alone = use[0] == "LOAD" and after in (("CALL", 1), ("CALL_FUNCTION", 1))
    return called_alone and before[0] == OBJECT and before[1] is default_collate


def _steps(function: FunctionType, code: CodeType | None = None) -> list[Instruction]:
    """Lists what `function` does, or a list comprehension inside of it, whose `code` is given."""
    code = code or function.__code__
    numbers = {name: number for number, name in enumerate(code.co_varnames[: code.co_argcount])}
    steps: list[Instruction] = []
    for name, value in _single_instructions(code):
        if name == "LOAD_ATTR" and steps and type(steps[-1][1]) is ModuleType:
            steps[-1] = OBJECT, getattr(steps[-1][1], value, UNKNOWN)
        elif name in ("LOAD_GLOBAL", "LOAD_DEREF"):
            steps.append((OBJECT, _outer_values(function, name).get(value, UNKNOWN)))
        elif name in ("LOAD", "STORE", "DELETE"):
            number = numbers.setdefault(value, len(numbers))
            steps.append((name, number))
        else:
            steps.append((name, value))
    return steps


def _single_instructions(code: CodeType) -> Iterator[tuple[str, Any]]:
    """Yields the names and arguments of instructions that do anything; LOAD, STORE and DELETE are each about
    one local variable, by its name."""
    for each in dis.get_instructions(code):
        name = SAME_AS.get(each.opname, each.opname)
        if "_FAST" in name:
            # Such as LOAD_FAST, or STORE_FAST_LOAD_FAST of two variables.
            variables = each.argval if isinstance(each.argval, tuple) else (each.argval,)
            yield from zip(re.findall("LOAD|STORE|DELETE", name), variables, strict=True)
        elif name not in IDLE_INSTRUCTIONS:
            yield name, each.argrepr if name == "BINARY_OP" else each.argval


def _outer_values(function: FunctionType, instruction: str) -> Mapping[str, Any]:
    """The values that LOAD_GLOBAL, or else LOAD_DEREF, finds by name."""
    if instruction == "LOAD_GLOBAL":
        return ChainMap(function.__globals__, vars(builtins))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    try:
        return {name: cell.cell_contents for name, cell in cells}
    except ValueError:  # a cell that is empty still
        return {}


# Number of arguments, table of exception handlers, and steps: (name, type of the argument, argument).
Shape = tuple[int, bytes, tuple[tuple[str, type, Any], ...]]


def _shape(function: Any, ignored: str | None = None) -> Shape | None:
    """Returns what a function does, apart from the constant or attribute `ignored`, or None if it takes other
    than positional arguments."""
    code = _plain_code(function)
    if code is None:
        return None
    steps = []
    for name, value in _steps(function):
        argument = id(value) if name == OBJECT else value  # objects needn't be hashable
        steps.append((name, type(argument), None if argument == ignored else argument))
    return code.co_argcount, _handlers(code), tuple(steps)


def _plain_code(function: Any) -> CodeType | None:
    """The code of a function that takes positional arguments alone and has no variables of another's."""
    if type(function) is not FunctionType:
        return None
    code = function.__code__
    closed = code.co_freevars or code.co_cellvars or code.co_kwonlyargcount
    return None if closed or code.co_flags & UNUSUAL_FLAGS else code


def _handlers(code: CodeType) -> bytes:
    """The table of exception handlers. Python 3.10 has instructions in its place."""
    return bytes(getattr(code, "co_exceptiontable", b""))


# What names mean in the code below.
NAMES = {
    "Image": Image,
    "ImageOps": ImageOps,
    "ImageReadMode": ImageReadMode,
    "decode_image": decode_image,
    "its_decode_image": torchvision.io.decode_image,
    "read_image": torchvision.io.read_image,
}


def _shapes(arguments: str, *bodies: str, ignored: str | None = None) -> set[Shape | None]:
    """Shapes of functions of these lines, in modules that import what they call and in cells that needn't."""
    found = set()
    for body, before in product(bodies, ("", "from PIL import Image")):
        source = f"{before}\ndef made({arguments}):\n{textwrap.indent(body, ' ')}"
        module = compile(source, "own code", "exec")
        code = next(each for each in module.co_consts if isinstance(each, CodeType))
        found.add(_shape(FunctionType(code, NAMES), ignored))
    return found


# What people write, in all the ways that are understood.
WRAPPERS = _shapes(
    "self, image",
    "return self.attribute(image)",
    "image = self.attribute(image)\nreturn image",
    "result = self.attribute(image)\nreturn result",
    ignored="attribute",
)
IDENTITIES = _shapes("image", "return image")
CONVERSIONS = _shapes(
    "image", 'return image.convert("RGB")', 'image = image.convert("RGB")\nreturn image', ignored="RGB"
)
TURNERS = _shapes("image", "return ImageOps.exif_transpose(image)")
READERS = _shapes(
    "path",
    'return Image.open(path).convert("RGB")',
    'image = Image.open(path)\nreturn image.convert("RGB")',
    'image = Image.open(path)\nimage = image.convert("RGB")\nreturn image',
    'image = Image.open(path).convert("RGB")\nreturn image',
    'with Image.open(path) as image:\n return image.convert("RGB")',
    'with open(path, "rb") as file:\n return Image.open(file).convert("RGB")',
    'with open(path, "rb") as file:\n image = Image.open(file)\n return image.convert("RGB")',
    'with open(path, "rb") as file:\n with Image.open(file) as image:\n  return image.convert("RGB")',
    ignored="RGB",
)


@lru_cache
def _readers_by(decode: Decode) -> set[Shape | None]:
    """Shapes of functions that read a file by torchcodec's `decode_image`, which gives RGB by default."""
    NAMES["codecs_decode_image"] = decode
    calls = [f"codecs_decode_image(path{mode})" for mode in ("", ', mode="RGB"')]
    return _shapes(
        "path", *(f"return {each}" for each in calls), *(f"image = {each}\nreturn image" for each in calls)
    )


DECODING = (decode_image, torchvision.io.decode_image, torchvision.io.read_image)
DECODE_IMAGE = ("decode_image", "its_decode_image")
TENSOR_READERS = _shapes(
    "path",
    *(f'return {name}(path, {mode}"RGB")' for name in DECODE_IMAGE for mode in ("mode=", "")),
    *(
        f"return {name}(path, {mode}ImageReadMode.RGB)"
        for name in (*DECODE_IMAGE, "read_image")
        for mode in ("mode=", "")
    ),
    'image = its_decode_image(path, mode="RGB")\nreturn image',
)
