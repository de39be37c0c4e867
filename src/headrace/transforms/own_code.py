"""Code of the user's own whose bytecode proves what it does.

A class around a transform, a subclass that changes nothing, a function that hands its image on or computes
with values: each is compared with code that is compiled here. Whatever looks different in any way is unknown.
"""

from __future__ import annotations

import builtins
import dis
import inspect
import re
import textwrap
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
import torchvision.io
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import default_collate
from torchvision import transforms as v1
from torchvision.io import ImageReadMode
from torchvision.transforms import v2

from headrace._torch_compat import find_call_change
from headrace.records import Mode
from headrace.transforms.decode_image import decode_image

MODES: tuple[Mode, ...] = ("RGB", "L")

# What a subclass may have of its own, besides new methods and constants, and still do what its base does.
HARMLESS = {
    *("__module__", "__qualname__", "__doc__", "__init__", "__repr__", "__str__", "extra_repr"),
    *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__orig_bases__"),
    *("__dict__", "__weakref__", "__parameters__", "__type_params__", "__abstractmethods__", "_abc_impl"),
    *("__static_attributes__", "__firstlineno__"),
}
CONSTANTS = (int, float, str, tuple, list, dict, type(None))

# Instructions of functions that do arithmetic with tensors, and methods of those that treat every value by
# itself. No powers: the last bits of those depend on a value's place in memory.
NUMBERS = {"LOAD_CONST", "LOAD_SMALL_INT"}
ARITHMETIC = {"+", "-", "*", "/", "+=", "-=", "*=", "/="}
MOVES = {"LOAD", "STORE", "CALL", "CALL_FUNCTION", "RETURN_VALUE", "UNARY_NEGATIVE"}
# Python 3.10 has an instruction for each.
MOVES |= {f"{kind}_{name}" for kind in ("BINARY", "INPLACE") for name in ("ADD", "SUBTRACT", "MULTIPLY")}
MOVES |= {"BINARY_TRUE_DIVIDE", "INPLACE_TRUE_DIVIDE"}
METHODS = {f"{name}{place}" for name in ("add", "sub", "mul", "div", "neg", "clamp") for place in ("", "_")}

# What a module has imported is called in another way than what it has not, as in the cells of a notebook.
CALLED_ALIKE = {"LOAD_METHOD": "LOAD_ATTR", "CALL_METHOD": "CALL_FUNCTION"}
IDLE = {"CACHE", "COPY_FREE_VARS", "NOP", "PRECALL", "PUSH_NULL", "RESUME"}
OBJECT = "what a name stands for"
UNKNOWN = object()
# Further instructions of functions that go through several images, and make a list or a tensor of results.
LOOPS = {
    *("GET_ITER", "FOR_ITER", "END_FOR", "POP_ITER", "POP_TOP", "SWAP", "NOT_TAKEN", "RERAISE"),
    *("BUILD_LIST", "BUILD_TUPLE", "LIST_APPEND", "LIST_TO_TUPLE", "MAKE_FUNCTION", "LOAD_CLOSURE"),
    *("SET_FUNCTION_ATTRIBUTE", "KW_NAMES", "CALL_KW", "CALL_FUNCTION_KW"),
}
# Functions of torch and torchvision that they may call with whatever they have.
CALLED = (
    *(torch.stack, list, tuple, map, v1.functional.to_tensor, v1.functional.pil_to_tensor),
    *(v1.functional.normalize, v1.functional.convert_image_dtype, v2.functional.to_image),
    *(v2.functional.pil_to_tensor, v2.functional.to_dtype, v2.functional.normalize),
)

# What may read a function's variables without naming them.
LOOKING_AROUND = {"locals", "vars", "eval", "exec", "dir", "_getframe", "currentframe", "stack", "super"}

UNUSUAL = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR
UNUSUAL |= inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

Step = tuple[str, Any]
Shape = tuple[tuple[str, type, Any], ...]


def plain_base(cls: type, known: Callable[[type], bool]) -> type | None:
    """The nearest base of `cls` for which `known` holds, if `cls` adds nothing that could change what that
    does: no method of its, no special method, no property. None: there is no such base."""
    mro = cls.__mro__
    place = next((i for i, each in enumerate(mro) if i and known(each)), None)
    if place is None or mro[place:] != mro[place].__mro__ or type(cls) is not type(mro[place]):
        return None
    return None if adds_to(cls, mro[place]) else mro[place]


def adds_to(cls: type, base: type, *, settings: bool = False) -> list[str]:
    """Names of what `cls` and its bases besides `base` have that could change what `base` does: methods that
    `base` has, special methods, properties, and other values of its constants unless these are `settings`."""
    others = [each for each in cls.__mro__ if each not in base.__mro__]
    own = [(name, value) for each in others for name, value in vars(each).items()]
    return [
        name
        for name, value in own
        if not (_adds_only(base, name, value) or (settings and isinstance(value, CONSTANTS)))
    ]


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
    names = method.__code__.co_names
    if len(names) != 1 or _shape(method, names[0]) not in WRAPPERS or not hasattr(transform, "__dict__"):
        return None
    attributes = vars(transform)
    if hasattr(cls, names[0]) or (is_module and ("forward" in attributes or find_call_change(transform))):
        return None
    modules = attributes.get("_modules", {}) if is_module else {}
    return attributes.get(names[0], modules.get(names[0]))


def hands_on(function: Any) -> bool:
    """Whether `function` returns its argument."""
    return _shape(function) in IDENTITIES


def conversion_of(function: Any) -> Mode | None:
    """The mode in the ``argument.convert(mode)`` that `function` returns; None: it does anything else."""
    return next((mode for mode in MODES if _shape(function, mode) in CONVERSIONS), None)


def reading_mode_of(function: Any) -> Mode | None:
    """The mode in the ``Image.open(path).convert(mode)`` that `function` of a path returns; None: it does
    anything else."""
    return next((mode for mode in MODES if _shape(function, mode) in READERS), None)


def reads_tensors(function: Any) -> bool:
    """Whether `function` of a path returns ``decode_image(path, mode="RGB")``: torchvision's, or ours."""
    if type(function) is partial:
        rgb = function.keywords in ({"mode": "RGB"}, {"mode": ImageReadMode.RGB})
        return rgb and not function.args and any(function.func is each for each in DECODING)
    return _shape(function) in TENSOR_READERS


def turns_upright(function: Any) -> bool:
    """Whether `function` is Pillow's `exif_transpose`, or hands on what that returns for its argument."""
    return function is ImageOps.exif_transpose or _shape(function) in TURNERS


def computes(function: Any) -> bool:
    """Whether `function` of a tensor does arithmetic with numbers alone: every value by itself."""
    code = _plain_code(function)
    return code is not None and code.co_argcount == 1 and all(map(_is_arithmetic, _steps(function)))


def _is_arithmetic(step: Step) -> bool:
    name, value = step
    if name in NUMBERS:
        return type(value) in (int, float)
    if name == "LOAD_ATTR":
        return value in METHODS
    return value in ARITHMETIC if name == "BINARY_OP" else name in MOVES


def maps_images(function: Any, known: Callable[[Any], bool]) -> bool:
    """Whether `function` of several images, or tensors, calls nothing but torch.stack, functions that treat
    values one by one, and transforms for which `known` holds: it remembers nothing, and draws no numbers.

    What it computes isn't known, such as which images it leaves out.
    """
    if type(function) is not FunctionType or function.__code__.co_argcount != 1:
        return function is torch.stack
    return _only_maps(function, function.__code__, known)


def _only_maps(function: FunctionType, code: CodeType, known: Callable[[Any], bool]) -> bool:
    """The same of `code`, which is that of `function` or of a list comprehension inside of it."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    if code.co_flags & UNUSUAL or code.co_kwonlyargcount or code.co_cellvars:
        return False
    if not all(_maps(step, known) for step in _steps(function, code)):
        return False
    return all(each.co_name == "<listcomp>" and _only_maps(function, each, known) for each in inner)


def _maps(step: Step, known: Callable[[Any], bool]) -> bool:
    name, value = step
    if name == OBJECT:
        return _is_plain(value) or any(value is each for each in CALLED) or known(value)
    if name in NUMBERS:
        return isinstance(value, CodeType) or _is_plain(value)
    return name in LOOPS or name.startswith("JUMP_") or _is_arithmetic(step)


def _is_plain(value: Any) -> bool:
    """Whether `value` is a number, a name, a dtype, or several of those."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (int, float, bool, str, torch.dtype)


def collates_first(function: Any) -> bool:
    """Whether all that `function` does with its only argument is to call torch's `default_collate` with it,
    once at most: such as ``lambda samples: mixup(*default_collate(samples))``."""
    if type(function) is not FunctionType:
        return False
    code = function.__code__
    if code.co_argcount != 1 or code.co_kwonlyargcount or code.co_flags & UNUSUAL:
        return False
    if code.co_varnames[0] in code.co_cellvars or not LOOKING_AROUND.isdisjoint(code.co_names):
        return False
    steps = _steps(function)
    uses = [at for at, step in enumerate(steps) if step in (("LOAD", 0), ("STORE", 0), ("DELETE", 0))]
    repeats = any(name.startswith(("FOR_ITER", "JUMP_BACKWARD", "JUMP_ABSOLUTE")) for name, _ in steps)
    if len(uses) != 1 or repeats:
        return False
    (name, called), after = steps[uses[0] - 1], steps[uses[0] + 1 :]
    alone = steps[uses[0]][0] == "LOAD" and after[0] in (("CALL", 1), ("CALL_FUNCTION", 1))
    return alone and name == OBJECT and called is default_collate


def pixel_values_of(transform: Any, known: Callable[[Any], bool]) -> tuple[Any, bool, CodeType] | None:
    """The object `p`, for which `known` holds, where all that `transform` does with an image is to return
    ``p(image, return_tensors="pt")["pixel_values"][0]``, whether it converts the image to RGB before, and
    the code that does so. None: it does anything else."""
    found = _bound(transform)
    if found is None or found[0].__code__.co_flags & UNUSUAL or _handlers(found[0].__code__):
        return None
    function, values, image = found
    steps = _steps(function, arguments=(image,), values=values, until=known)
    used = [value for name, value in steps if name == OBJECT]
    if len(used) != 1 or not known(used[0]):
        return None
    converts = _processings().get(_compared(steps, id(used[0])))
    return None if converts is None else (used[0], converts, function.__code__)


def _bound(transform: Any) -> tuple[FunctionType, dict[str, Any], str] | None:
    """The function that is called for an image where `transform` is, its other arguments, and the name of
    the image's. None: it isn't a function of Python's, or can't be called so."""
    function: Any = transform
    before: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = {}
    if type(transform) is partial:
        function, before, keywords = transform.func, transform.args, transform.keywords
    elif type(transform) is MethodType:
        function, before = transform.__func__, (transform.__self__,)
    elif type(transform) is not FunctionType:
        function, before = inspect.getattr_static(type(transform), "__call__", None), (transform,)
    if type(function) is not FunctionType or "__signature__" in vars(function):
        return None
    image = object()
    try:
        bound = inspect.signature(function, follow_wrapped=False).bind(*before, image, **keywords)
    except TypeError:
        return None
    bound.apply_defaults()
    name = next((name for name, value in bound.arguments.items() if value is image), None)
    if name is None:
        return None
    return function, {key: value for key, value in bound.arguments.items() if key != name}, name


@lru_cache(maxsize=1)
def _processings() -> dict[Shape, bool]:
    """What functions do that return pixel values, each with whether it converts the image before."""
    images = (("", "image"), ("", 'image.convert("RGB")'), ('image = image.convert("RGB"); ', "image"))
    ends = (('["pixel_values"]', ".pixel_values"), ("[0]", ".squeeze(0)", ".squeeze()"))
    found: dict[Shape, bool] = {}
    for (before, image), keyword, values, first in product(images, ("", "images="), *ends):
        call = f'known({keyword}{image}, return_tensors="pt")'
        bodies = [f"return {call}{values}{first}"]
        for name in ("result", "image"):
            bodies += [
                f"{name} = {call}; return {name}{values}{first}",
                f"{name} = {call}{values}; return {name}{first}",
                f"{name} = {call}{values}{first}; return {name}",
            ]
        for body in bodies:
            steps = _steps(_function("image", before + body, names={"known": found}))
            found[_compared(steps, id(found))] = "convert" in before + image
    return found


def _steps(
    function: FunctionType,
    code: CodeType | None = None,
    arguments: Sequence[str] | None = None,
    values: Mapping[str, Any] | None = None,
    until: Callable[[Any], bool] | None = None,
) -> list[Step]:
    """Names and arguments of the instructions of `function`, as far as they do anything. Those about local
    variables are LOAD, STORE and DELETE, each about one variable, by its number; arguments come first. Global
    names and those of closures, and what modules have, are the objects that they stand for.

    Args:
        code: that of `function` (the default), or of a list comprehension inside of it.
        arguments: names of those that are numbered; None: all.
        values: of other arguments, which are objects, too.
        until: of objects for which it holds, no attribute is looked up; given, those of plain objects are,
            as well as those of modules.
    """
    code = code or function.__code__
    numbers: dict[str, int] = {}
    for name in code.co_varnames[: code.co_argcount] if arguments is None else arguments:
        numbers[name] = len(numbers)
    steps: list[Step] = []
    for name, value in _single_instructions(code):
        owner = steps[-1][1] if steps and steps[-1][0] == OBJECT else UNKNOWN
        if name == "LOAD_ATTR" and owner is not UNKNOWN and _may_hold(owner, until):
            steps[-1] = OBJECT, _attribute(owner, value)
        elif name in ("LOAD_GLOBAL", "LOAD_DEREF"):
            steps.append((OBJECT, _surroundings(function, name).get(value, UNKNOWN)))
        elif name == "LOAD" and values is not None and value in values:
            steps.append((OBJECT, values[value]))
        elif name in ("LOAD", "STORE", "DELETE"):
            steps.append((name, numbers.setdefault(value, len(numbers))))
        else:
            steps.append((name, value))
    return steps


def _single_instructions(code: CodeType) -> Iterator[tuple[str, Any]]:
    """Names and arguments of instructions; those about local variables each about one, by its name."""
    for each in dis.get_instructions(code):
        name = CALLED_ALIKE.get(each.opname, each.opname)
        if "_FAST" in name:
            variables = each.argval if isinstance(each.argval, tuple) else (each.argval,)
            yield from zip(re.findall("LOAD|STORE|DELETE", name), variables, strict=True)
        elif name not in IDLE:
            yield name, each.argrepr if name == "BINARY_OP" else each.argval


def _may_hold(owner: Any, until: Callable[[Any], bool] | None) -> bool:
    """Whether an attribute of `owner` is an object that a function's code names."""
    return type(owner) is ModuleType if until is None else not until(owner)


def _attribute(owner: Any, name: str) -> Any:
    """What a module or a plain object has under that name; else UNKNOWN."""
    if type(owner) is ModuleType:
        return getattr(owner, name, UNKNOWN)
    kind = type(owner)
    reads = inspect.getattr_static(kind, "__getattribute__") is object.__getattribute__
    plain = reads and inspect.getattr_static(kind, name, None) is None and hasattr(owner, "__dict__")
    return vars(owner).get(name, UNKNOWN) if plain else UNKNOWN


def _surroundings(function: FunctionType, instruction: str) -> Mapping[str, Any]:
    """The values that LOAD_GLOBAL, or else LOAD_DEREF, finds by name."""
    if instruction == "LOAD_GLOBAL":
        return ChainMap(function.__globals__, vars(builtins))
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    try:
        return {name: cell.cell_contents for name, cell in cells}
    except ValueError:  # a cell that is empty still
        return {}


def _compared(steps: Sequence[Step], hole: Any) -> Shape:
    """`steps` as they are compared: without what equals `hole`, and with objects by their identity."""
    found = ((name, id(value) if name == OBJECT else value) for name, value in steps)
    return tuple((name, type(value), None if value == hole else value) for name, value in found)


def _shape(function: Any, hole: str | None = None) -> tuple[int, bytes, Shape] | None:
    """What a function does, whatever its variables are called, and whatever the constant or attribute `hole`
    is."""
    code = _open_code(function)
    return None if code is None else (code.co_argcount, _handlers(code), _compared(_steps(function), hole))


def _plain_code(function: Any) -> CodeType | None:
    """The code of a function that takes positional arguments alone, knows no variables but its own, and
    handles no exceptions."""
    code = _open_code(function)
    return None if code is None or _handlers(code) else code


def _open_code(function: Any) -> CodeType | None:
    """The code of a function that takes positional arguments alone and has no variables of another's."""
    if type(function) is not FunctionType:
        return None
    code = function.__code__
    closed = code.co_freevars or code.co_cellvars or code.co_kwonlyargcount
    return None if closed or code.co_flags & UNUSUAL else code


def _handlers(code: CodeType) -> bytes:
    # Python 3.10 has no such table: what handles exceptions there are instructions.
    handlers: bytes = getattr(code, "co_exceptiontable", b"")
    return handlers


# What names mean in the code below.
NAMES = {"Image": Image, "ImageOps": ImageOps, "decode_image": decode_image, "ImageReadMode": ImageReadMode}
NAMES |= {"its_decode_image": torchvision.io.decode_image, "read_image": torchvision.io.read_image}


def _function(arguments: str, body: str, before: str = "", names: dict[str, Any] = NAMES) -> FunctionType:
    """The function of these lines, in a module with the line `before` it."""
    module = compile(f"{before}\ndef made({arguments}):\n{textwrap.indent(body, ' ')}", "own code", "exec")
    return FunctionType(next(each for each in module.co_consts if isinstance(each, CodeType)), names)


def _shapes(arguments: str, *bodies: str, hole: str | None = None) -> set[Any]:
    """Of functions of these lines, in modules that import what they call and in cells that needn't."""
    modules = ("", "from PIL import Image")
    made = (_function(arguments, body, module) for body in bodies for module in modules)
    return {_shape(each, hole) for each in made}


# What people write, in all the ways that are understood.
WRAPPERS = _shapes(
    "self, image",
    "return self.attribute(image)",
    "image = self.attribute(image)\nreturn image",
    "result = self.attribute(image)\nreturn result",
    hole="attribute",
)
IDENTITIES = _shapes("image", "return image")
CONVERSIONS = _shapes(
    "image", 'return image.convert("RGB")', 'image = image.convert("RGB")\nreturn image', hole="RGB"
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
    hole="RGB",
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
