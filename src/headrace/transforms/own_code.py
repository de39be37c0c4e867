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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import product
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import PIL
import torch
import torchvision.io
from PIL import Image, ImageOps
from torch import nn
from torch.utils.data import default_collate
from torchvision import transforms as v1
from torchvision.io import ImageReadMode
from torchvision.transforms import v2

import headrace
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

# What a module has imported is called in another way than what it has not, as in the cells of a notebook.
CALLED_ALIKE = {"LOAD_METHOD": "LOAD_ATTR", "CALL_METHOD": "CALL_FUNCTION", "PUSH_NULL": ""}
IDLE = {"", "CACHE", "COPY_FREE_VARS", "NOP", "PRECALL", "PUSH_NULL", "RESUME"}
# Further instructions of functions that go through several images, and make a list or a tensor of results.
LOOPS = {"GET_ITER", "FOR_ITER", "END_FOR", "POP_ITER", "POP_TOP", "SWAP", "COPY_FREE_VARS"}
LOOPS |= {"BUILD_LIST", "BUILD_TUPLE", "LIST_APPEND", "MAKE_FUNCTION", "LOAD_CLOSURE", "KW_NAMES"}
LOOPS |= {
    "SET_FUNCTION_ATTRIBUTE",
    "CALL_KW",
    "CALL_FUNCTION",
    "CALL_FUNCTION_KW",
    "RERAISE",
    "LIST_TO_TUPLE",
}
JUMPS = ("JUMP_", "LOAD_FAST", "STORE_FAST", "NOT_TAKEN")
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

Shape = tuple[int, bytes, tuple[tuple[str, type, Any], ...]]


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


def conversion_of(function: Any) -> Mode | None:
    """The mode in the ``argument.convert(mode)`` that `function` returns; None: it does anything else."""
    return next((mode for mode in MODES if _shape(function, mode=mode) in CONVERSIONS), None)


def reading_mode_of(function: Any) -> Mode | None:
    """The mode in the ``Image.open(path).convert(mode)`` that `function` of a path returns; None: it does
    anything else."""
    return next((mode for mode in MODES if _shape(function, mode=mode) in READERS), None)


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
    return code is not None and code.co_argcount == 1 and all(map(_is_arithmetic, dis.get_instructions(code)))


def maps_images(function: Any, known: Callable[[Any], bool]) -> bool:
    """Whether `function` of several images, or tensors, calls nothing but torch.stack, functions that treat
    values one by one, and transforms for which `known` holds: it remembers nothing, and draws no numbers.

    What it computes isn't known, such as which images it leaves out.
    """
    if function is torch.stack:
        return True
    if type(function) is not FunctionType or function.__code__.co_argcount != 1:
        return False
    code = function.__code__
    if code.co_flags & UNUSUAL or code.co_kwonlyargcount or code.co_cellvars:
        return False
    return _only_maps(function, code, known)


def _only_maps(function: FunctionType, code: CodeType, known: Callable[[Any], bool]) -> bool:
    """The same of `code`, which is that of `function` or of a list comprehension inside of it."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    if any(each.co_name != "<listcomp>" or each.co_flags & UNUSUAL or each.co_cellvars for each in inner):
        return False
    steps = [each for each in dis.get_instructions(code) if each.opname != "CACHE"]
    place = 0
    while place < len(steps):
        step = steps[place]
        place += 1
        if step.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
            value = _surroundings(function, step.opname).get(step.argval)
            while place < len(steps) and steps[place].opname in ATTRIBUTES and isinstance(value, ModuleType):
                value = getattr(value, steps[place].argval, None)
                place += 1
            if not (_is_plain(value) or any(value is each for each in CALLED) or known(value)):
                return False
        elif not (_only_moves(step) or _is_arithmetic(step)):
            return False
    return all(_only_maps(function, each, known) for each in inner)


def _only_moves(step: dis.Instruction) -> bool:
    if step.opname in NUMBERS:
        return isinstance(step.argval, CodeType) or _is_plain(step.argval)
    return step.opname in LOOPS or step.opname.startswith(JUMPS)


def _is_plain(value: Any) -> bool:
    """Whether `value` is a number, a name, a dtype, or several of those."""
    if type(value) in (list, tuple):
        return all(map(_is_plain, value))
    return value is None or type(value) in (int, float, bool, str, torch.dtype)


def pixel_values_of(transform: Any, known: Callable[[Any], bool]) -> tuple[Any, bool, CodeType] | None:
    """The object `p`, for which `known` holds, where all that `transform` does with an image is to return
    ``p(image, return_tensors="pt")["pixel_values"][0]``, whether it converts the image to RGB before, and
    the code that does so. None: it does anything else."""
    found = _bound(transform)
    if found is None or found[0].__code__.co_flags & UNUSUAL or _handlers(found[0].__code__):
        return None
    steps, used = _steps_around(*found, known)
    if steps is None or len(used) != 1:
        return None
    converts = _processings().get(steps)
    return None if converts is None else (used[0], converts, found[0].__code__)


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


def _steps_around(
    function: FunctionType, values: Mapping[str, Any], image: str, known: Callable[[Any], bool]
) -> tuple[tuple[Any, ...] | None, list[Any]]:
    """What `function` does, whatever its variables are called, and the objects for which `known` holds that
    it uses, wherever they are from; None: it uses others, too.

    `values` are those of its arguments but for that named `image`.
    """
    steps: list[Any] = []
    used: list[Any] = []
    names, nothing = {image: "image"}, object()
    owner: Any = nothing  # what has been read, of which an attribute must follow
    for name, value in _single_instructions(function.__code__):
        if owner is not nothing:
            if name != "LOAD_ATTR":
                return None, used
            owner = _plain_attribute(owner, value)
        elif name in ("LOAD_GLOBAL", "LOAD_DEREF"):
            owner = _surroundings(function, name).get(value)
        elif name in ("LOAD", "STORE") and value in values:
            if name == "STORE":
                return None, used
            owner = values[value]
        elif name in ("LOAD", "STORE"):
            steps.append((name, names.setdefault(value, f"variable {len(names)}")))
        else:
            steps.append((name, type(value), value))
        if owner is not nothing and known(owner):
            used.append(owner)
            steps.append("known")
            owner = nothing
    return (tuple(steps) if owner is nothing else None), used


def _single_instructions(code: CodeType) -> Iterator[tuple[str, Any]]:
    """Names and arguments of instructions; those about local variables are LOAD and STORE, each about one."""
    for each in dis.get_instructions(code):
        name = CALLED_ALIKE.get(each.opname, each.opname)
        if name.startswith(LOCALS):
            variables = each.argval if isinstance(each.argval, tuple) else (each.argval,)
            yield from zip(re.findall("LOAD|STORE", name), variables, strict=True)
        elif name not in IDLE:
            yield name, each.argval


def _plain_attribute(owner: Any, name: str) -> Any:
    """What a module or a plain object has under that name; else None."""
    if type(owner) is ModuleType:
        return vars(owner).get(name)
    kind = type(owner)
    reads = inspect.getattr_static(kind, "__getattribute__") is object.__getattribute__
    plain = reads and inspect.getattr_static(kind, name, None) is None and hasattr(owner, "__dict__")
    return vars(owner).get(name) if plain else None


@lru_cache(maxsize=1)
def _processings() -> dict[tuple[Any, ...], bool]:
    """What functions do that return pixel values, each with whether it converts the image before."""
    images = (("", "image"), ("", 'image.convert("RGB")'), ('image = image.convert("RGB"); ', "image"))
    ends = (('["pixel_values"]', ".pixel_values"), ("[0]", ".squeeze(0)", ".squeeze()"))
    found: dict[tuple[Any, ...], bool] = {}
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
            made = _function("image", before + body, names={"known": found})
            steps, _ = _steps_around(made, {}, "image", lambda value: value is found)
            assert steps is not None
            found[steps] = "convert" in before + image
    return found


def collates_first(function: Any) -> bool:
    """Whether all that `function` does with its only argument is to call torch's `default_collate` with it,
    once at most: such as ``lambda samples: mixup(*default_collate(samples))``."""
    if type(function) is not FunctionType:
        return False
    code = function.__code__
    if code.co_argcount != 1 or code.co_kwonlyargcount or code.co_flags & UNUSUAL:
        return False
    samples = code.co_varnames[0]
    if samples in code.co_cellvars or not LOOKING_AROUND.isdisjoint(code.co_names):
        return False
    idle = ("CACHE", "PUSH_NULL", "PRECALL")
    steps = [each for each in dis.get_instructions(code) if each.opname not in idle]
    uses = [place for place, step in enumerate(steps) if _names(step, samples)]
    repeats = any(step.opname.startswith(("FOR_ITER", "JUMP_BACKWARD", "JUMP_ABSOLUTE")) for step in steps)
    if len(uses) != 1 or repeats:
        return False
    use = uses[0]
    called = steps[use + 1].opname in ("CALL", "CALL_FUNCTION", "CALL_METHOD") and steps[use + 1].arg == 1
    alone = steps[use].opname.startswith("LOAD_FAST") and steps[use].argval == samples
    return called and alone and _value_before(function, steps[:use]) is default_collate


def _names(step: dis.Instruction, variable: str) -> bool:
    """Whether an instruction is about a local variable, or about two of which it is one."""
    if "FAST" not in step.opname:
        return False
    return variable in step.argval if isinstance(step.argval, tuple) else step.argval == variable


def _value_before(function: FunctionType, steps: Sequence[dis.Instruction]) -> Any:
    """What the last of `steps` leave on the stack, where that is a variable of the function's surroundings,
    or what a module has; else None."""
    attributes = []
    place = len(steps) - 1
    while place > 0 and steps[place].opname in ATTRIBUTES:
        attributes.append(steps[place].argval)
        place -= 1
    if place < 0 or steps[place].opname not in ("LOAD_GLOBAL", "LOAD_DEREF"):
        return None
    value = _surroundings(function, steps[place].opname).get(steps[place].argval)
    for name in reversed(attributes):
        value = getattr(value, name, None) if isinstance(value, ModuleType) else None
    return value


def _surroundings(function: FunctionType, instruction: str) -> Mapping[str, Any]:
    """The values that LOAD_GLOBAL, or else LOAD_DEREF, finds by name."""
    if instruction == "LOAD_GLOBAL":
        return {**vars(builtins), **function.__globals__}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    try:
        return {name: cell.cell_contents for name, cell in cells}
    except ValueError:  # a cell that is empty still
        return {}


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


def _shape(function: Any, *, mode: Mode = "RGB", any_name: bool = False) -> Shape | None:
    """What a function does, whatever its variables are called: with the objects that global names stand for,
    and without `mode` where that is a constant; with `any_name` whatever the only attribute is called."""
    code = _open_code(function)
    if code is None:
        return None
    code = code.replace(co_varnames=tuple(f"v{i}" for i in range(len(code.co_varnames))))
    if any_name and len(code.co_names) == 1:
        code = code.replace(co_names=("attribute",))
    steps = []
    for each in dis.get_instructions(code):
        name, value = CALLED_ALIKE.get(each.opname, each.opname), each.argval
        if name == "LOAD_GLOBAL":
            value = id(function.__globals__.get(value, vars(builtins).get(value)))
        elif name == "LOAD_CONST" and value == mode:
            value = None
        steps += [(name, type(value), value)] if name else []
    return code.co_argcount, _handlers(code), tuple(steps)


# What names mean in the code below.
NAMES = {"Image": Image, "ImageOps": ImageOps, "PIL": PIL, "headrace": headrace, "torchvision": torchvision}
NAMES |= {"decode_image": decode_image, "its_decode_image": torchvision.io.decode_image}
NAMES |= {"read_image": torchvision.io.read_image, "ImageReadMode": ImageReadMode}


def _function(arguments: str, body: str, before: str = "", names: dict[str, Any] = NAMES) -> FunctionType:
    """The function of these lines, in a module with the line `before` it."""
    module = compile(f"{before}\ndef made({arguments}):\n{textwrap.indent(body, ' ')}", "own code", "exec")
    return FunctionType(next(each for each in module.co_consts if isinstance(each, CodeType)), names)


def _shapes(argument: str, *bodies: str) -> set[Shape | None]:
    """Of functions of these lines, in modules that import what they call and in cells that needn't."""
    modules = ("", "from PIL import Image")
    return {_shape(_function(argument, body, module)) for body in bodies for module in modules}


# What people write, in all the ways that are understood.
WRAPPERS = {
    _shape(_function("self, image", body), any_name=True)
    for body in (
        "return self.attribute(image)",
        "image = self.attribute(image)\nreturn image",
        "result = self.attribute(image)\nreturn result",
    )
}
IDENTITIES = _shapes("image", "return image")
CONVERSIONS = _shapes("image", 'return image.convert("RGB")', 'image = image.convert("RGB")\nreturn image')
TURNERS = _shapes("image", "return ImageOps.exif_transpose(image)")
READERS = _shapes(
    "path",
    'return Image.open(path).convert("RGB")',
    'return PIL.Image.open(path).convert("RGB")',
    'image = Image.open(path)\nreturn image.convert("RGB")',
    'image = Image.open(path)\nimage = image.convert("RGB")\nreturn image',
    'image = Image.open(path).convert("RGB")\nreturn image',
    'with Image.open(path) as image:\n return image.convert("RGB")',
    'with open(path, "rb") as file:\n return Image.open(file).convert("RGB")',
    'with open(path, "rb") as file:\n image = Image.open(file)\n return image.convert("RGB")',
    'with open(path, "rb") as file:\n with Image.open(file) as image:\n  return image.convert("RGB")',
)
DECODING = (decode_image, torchvision.io.decode_image, torchvision.io.read_image)
DECODE_IMAGE = ("decode_image", "headrace.decode_image", "its_decode_image", "torchvision.io.decode_image")
READ_IMAGE = ("read_image", "torchvision.io.read_image")
RGB = ("ImageReadMode.RGB", "torchvision.io.ImageReadMode.RGB")
TENSOR_READERS = _shapes(
    "path",
    *(
        f"return {function}(path, {keyword}{mode})"
        for functions, modes in ((DECODE_IMAGE, ('"RGB"', *RGB)), (READ_IMAGE, RGB))
        for function, keyword, mode in product(functions, ("mode=", ""), modes)
    ),
    'image = torchvision.io.decode_image(path, mode="RGB")\nreturn image',
)
