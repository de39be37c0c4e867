"""Advice about a line of the user's code, by what the line does."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from headrace_doctor.doctor.records import StageCost

# Share of a stage's time from which on one line stands for it.
LINE_THAT_MATTERS = 0.5
# Share of a stage's time from which on it rather waits than computes.
MOSTLY = 0.5
NOT_WAITING = "read less for each sample, or open and load once per worker: it computes and does not wait"
ONCE = "once per worker, not for each sample"
# Of a call: a file that is the same for every sample, and arguments that say what is read of it.
SAME_FILE = r"(self\.\w+|[A-Z][A-Z_]+),"


@dataclass(frozen=True)
class Action:
    """Something that lines of code do.

    Attributes:
        pattern: of the line's text, or of the library's function that it calls.
        does: what it does, as a part of a sentence.
        remedy: what to do instead, as one sentence; {call} is the line's call.
        again: the same if the call has the same result for every sample; default: `remedy`.
    """

    pattern: str
    does: str
    remedy: str
    again: str = ""


# The first that matches counts.
ACTIONS = (
    Action(
        r"^(TensorDataset|Subset|ConcatDataset|StackDataset|torch's loop over samples)$",
        "picks single rows",
        "pick whole batches: DataLoader(dataset, sampler=BatchSampler(RandomSampler(dataset), batch_size,"
        " False), batch_size=None)",
    ),
    Action(
        r"\bsubprocess\b|\bPopen\b|\bos\.(system|popen)\(|\bcheck_output\(",
        "starts a program",
        "call a library instead of a program, or run the program over all files once, before the training",
    ),
    Action(
        r"\bsleep\(",
        "sleeps",
        "remove the sleep; if it stands for a limit of requests, ask for several samples at once",
    ),
    Action(
        r"\b(ZipFile\(|tarfile\.open|h5py\.File|lmdb\.open|sqlite3\.connect|netCDF4\.Dataset|ParquetFile"
        r"|open_dataset|open_zarr|zarr\.open\w*)|\.(extractfile|getmember)\("
        r"|→ (ZipFile|TarFile|Dataset)\.(__init__|open|next)",
        "opens an archive or searches it",
        f"open the archive {ONCE}",
    ),
    Action(
        r"\bCAP_PROP_POS_",
        "seeks in a video",
        "seek once and read the frames one after another, as each seek decodes all since the last keyframe",
    ),
    Action(
        r"savez_compressed|→ NpzFile\.|\b(gzip|bz2|lzma|zlib)\.|decompress\(",
        "decompresses a file",
        "store the files without compression, or packed: headrace pack SRC DEST",
    ),
    Action(
        r"\b(np|numpy)\.load\(",
        "loads a whole file",
        'map the file instead of loading it: np.load(…, mmap_mode="r") reads only what is used',
        f"load it {ONCE}",
    ),
    Action(
        r"\b(torch|pickle|joblib|json|yaml)\.\w*load\(|\bread_(csv|parquet|json|table|pickle)\(|\bloadtxt\("
        r"|\bgenfromtxt\(|\bloadmat\(",
        "loads a whole file",
        "store each sample as an array of its own, which loads without parsing",
        f"load it {ONCE}",
    ),
    Action(
        r"\.(r?glob|iterdir)\(|\bos\.(listdir|scandir|walk)\(|\bi?glob\(",
        "lists files",
        "list the files once, when the dataset is made",
        "list the files once",
    ),
    Action(
        r"\.execute(many)?\(|\.fetch(one|all)\(",
        "queries a database",
        "create an index for the column that is looked up, or read the table into memory once",
    ),
    Action(
        r"\bjson\.loads\(|\bliteral_eval\(|\bstrptime\(|\bfromstring\(|\bElementTree\b|\bcsv\.|\.split\("
        r"|\bre\.\w+\(|\.(findall|finditer)\(|\w*(tokenize|parse|decode_text)\w*\(",
        "parses text",
        "parse the records once, before the training, and store what comes of it as arrays (np.save)",
    ),
    Action(
        r"\.(resize|thumbnail|zoom)\w*\(|\binterpolate\(|\bwarp\w*\(",
        "resizes",
        "store the images in the size that the model gets, or resize whole batches on the GPU",
    ),
    Action(
        r"\bsorted\(|\.sort\(|\bargsort\(",
        "sorts",
        "sort once, when the object is made, and only pick from the sorted list here",
    ),
    Action(
        r"\bmultinomial\(|\b(rand)?perm(utation)?\(|\bchoices?\(|\bshuffle\(|\brandint\(|WeightedRandomSampler",
        "draws random numbers",
        "draw only as many as are used (num_samples=steps of an epoch × batch size)",
    ),
    Action(
        r"\b(np|numpy|torch)\.(zeros|empty|ones|full|tile|repeat)\w*\(|\bdeepcopy\(|\.(copy|clone)\(\)",
        "allocates memory",
        "allocate the buffer once per worker and write into it",
    ),
    Action(
        r"\b(torch\.tensor|torch\.as_tensor|FloatTensor|LongTensor)\(\[",
        "makes a tensor of a list",
        "make one array of the list first: torch.from_numpy(np.stack([…]))",
    ),
    Action(
        r"^(for|while) | for \w+ in |\.append\(",
        "loops in Python",
        "replace the loop by one operation on the whole array (NumPy, torch)",
    ),
)


NAMES = {
    "read": "reading",
    "decode": "decoding",
    "collate": "collating",
    "lock": "a lock",
    "send": "sending",
    "receive": "receiving",
}
OF_SAMPLERS = ("sorts", "draws random numbers")  # what a sampler need not do for each batch


def action_of(stage: StageCost) -> Action | None:
    """Returns what the busiest line of a stage does, or None if that is not known."""
    text = stage.line.partition(": ")[2] or stage.name
    if stage.kind == "receive":  # whatever is done with it
        return None
    return next((one for one in ACTIONS if re.search(one.pattern, text)), None)


def described(stage: StageCost) -> str:
    """The stage in words, with the user's line if it holds most of the stage's time, and what that does."""
    name = NAMES.get(stage.name)
    where, text = place_and_text(stage.line)
    if stage.line_share < LINE_THAT_MATTERS:
        return f"{name} (its busiest line: {where})" if name and where else name or stage.name
    action = action_of(stage)
    does = f", which {action.does}" if action else ""
    return f"{name or stage.name.partition(' (')[0]} at {where}{does}: {text}"


def place_and_text(line: str) -> tuple[str, str]:
    """("train.py:41", its text) of a line as `StageCost.line` has it."""
    where, _, text = line.partition(": ")
    return where.partition(" ")[0], text.partition(" → ")[0]


def remedy_for(stage: StageCost, otherwise: str) -> tuple[str, ...]:
    """Advice in one sentence, then lines of a diff if it is certain; `otherwise` if nothing is known."""
    action = action_of(stage) if stage.line_share >= LINE_THAT_MATTERS or not stage.line else None
    if action is None and stage.kind == "read" and stage.waiting < MOSTLY:
        return (NOT_WAITING,)
    if action is None or (stage.kind == "sampler" and action.does not in OF_SAMPLERS):
        sentence, *more = otherwise.format(name=stage.name).splitlines()
        return (sentence, *(f" {line}" for line in more))
    once = ONCE in action.remedy + action.again
    patch = kept(stage.line.partition(": ")[2].partition(" → ")[0]) if once else ()
    # A transform does not know which sample it gets.
    whole = re.search(f"(?:{action.pattern}){SAME_FILE}", stage.line)
    same = action.again and (patch or whole or stage.kind == "transform")
    return (action.again if same else action.remedy, *patch)


def kept(text: str) -> tuple[str, ...]:
    """A patch that keeps the result of a call in an attribute, or nothing if another sample may need another.

    It is the same for every sample if nothing but attributes of the object and constants go into it.
    """
    statement = re.fullmatch(r"with (?P<call>.+) as (?P<name>\w+):", text)
    statement = statement or re.fullmatch(r"(?P<name>\w+) = (?P<call>[\w.]+\(.*\))", text)
    if statement is None:
        return ()
    name, call = statement["name"], statement["call"]
    try:
        tree = ast.parse(call, mode="eval").body
    except SyntaxError:
        return ()
    if not isinstance(tree, ast.Call):
        return ()
    inputs = [node for part in (*tree.args, *tree.keywords) for node in ast.walk(part)]
    names = [node.id for node in inputs if isinstance(node, ast.Name)]
    constant = all(one in ("self", "os", "str", "Path", "open") or one.isupper() for one in names)
    if not constant or any(isinstance(node, ast.Subscript) for node in inputs):
        return ()
    return (
        f"-{text}",
        '+if getattr(self, "_owner", None) != os.getpid():  # forked workers must not share a handle',
        f"+    self._{name}, self._owner = {call}, os.getpid()",
        f"+{name} = self._{name}",
    )
