"""Measures a package's source: its size, its indirections, and names and sentences that carry no meaning.

    python tools/size.py [FOLDER]                     a table by room
    python tools/size.py --places MEASURE [FOLDER]    the places that a column counts: `crumbs`, `parcels`, …

`FOLDER` is the package, by default `iree_gauntlet/`. `tests/test_architecture.py` compares the counts with limits.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MANY_PARAMETERS = 7
CRUMB_LINES = 6
PARCEL_FIELDS = 2

# Columns of the table of sizes, with descriptions.
COLUMNS = {
    "files": "files",
    "lines": "lines in all",
    "code": "lines that hold a token other than a comment or a docstring",
    "docs": "lines of docstrings",
    "imports": "lines of imports",
    "keys": "lines that index by a string: `entry['id']`, `entry.get('id')`",
    "any": "uses of Any",
    "not_none": "asserts that something is not None",
    "crumbs": f"private functions of at most {CRUMB_LINES} lines that are named once more in their file",
    "parcels": f"dataclasses of at most {PARCEL_FIELDS} fields and no method",
    "functions": "functions that are no properties",
    "nouns": "of them those whose name does not begin with a verb",
    "many": f"functions of more than {MANY_PARAMETERS} parameters",
}
# Columns of the table of names and sentences. A name counts once in each scope that binds it.
WORD_COLUMNS = {
    "names": "variables, parameters and fields",
    "participles": "of them those that are a bare participle: `found`, `given`",
    "fillers": "of them those that are a bare function word: `what`, `before`",
    "docstrings": "docstrings",
    "questions": "of them those that begin with What, Which, How, Where, Why, When, Who or Whether",
    "openers": "of them those that begin with a preposition",
    "comments": "comments, of any number of lines",
    "fragments": "of them those that begin with What or Of",
    "verbal": "classes whose name begins or ends with a participle",
}
# A function's name should begin with one of these words, so that a call reads as an action or a question.
_VERBS = """
    abandon abort acquire add adjust adopt advance allow announce answer append applies apply archive are
    arrange as ask assume await batch become begin bind bisect blame block bootstrap bound breaks bring build
    call came can cancel capture cast change check choose classify clean clear close collect combine compare
    compile complete compose compute conclude configure confirm connect construct contain continue convert copy
    count counts cover create cut damage decide declare decode decorate define demand describe detect diagnose
    did differ digest discard discover distrust divide do does download draw drop dump edit emit empty enable
    encode end enqueue ensure enter escape estimate evaluate exclude execute exists exit expand expect explain
    export extend extract fail feed fetch fill filter find finish fit fits flatten follow forget form format
    free freeze from gather generate get give go goes group guard guess hand handle hang has hash have hear hint
    hold import include infer inline insert inspect install instantiate invoke is join judge keep kill know
    lacked lay lead leave let link list load locate lock look loosen make makes map mark match matches
    materialise may measure merge must name names narrow needs normalise note notice obey offer omit open order
    pack pad pair parse pass peek perform pick pin place plan pop prefill prepare print profile propose prove
    provide prune publish pull pursue push put quantize quote raise rank read reads reap rebuild receive
    recognise reconnect record reduce refer refine refuse register release reload remember remove rename render
    renew repair repeat replace report request require reserve reset resolve restore resume retire retry return rewrite
    round run save say scale scan search seek select send serve set settle shade shard shift ship shorten should
    show shows shut sign skip snapshot sort spell split squeeze start stop store strip submit suggest sum supply
    switch sync take tell tend terminate test throw tick tidy time to touch trace track train translate try turn
    unescape unlimit unpack unshare update use validate verify visit wait wake walk warn was widen with withdraw
    without work works wrap write yield
"""
VERBS = frozenset(_VERBS.split())
# `_IRREGULAR` lists participles without -ed, `_NO_PARTICIPLES` words with -ed that are no participles.
_IRREGULAR = """
    beaten become begun bent borne bought bred broken brought built caught chosen come dealt done drawn driven dug eaten
    fallen felt flown forgotten fought found frozen given gone got grown heard held hidden hung kept known lain laid
    lent lost made meant paid proven ridden risen rung said sent shaken shot shown slept sold sought spent spoken spun
    stolen stood struck stuck sung sunk swept sworn taken taught thought thrown told torn understood withdrawn woken won
    worn written
"""
IRREGULAR = frozenset(_IRREGULAR.split())
_NO_PARTICIPLES = "breed deed embed exceed feed greed hundred indeed naked need proceed reed sacred seed speed weed"
NO_PARTICIPLES = frozenset(_NO_PARTICIPLES.split())
_FUNCTION_WORDS = """
    about above across after again against all also any anything as at be before behind below beside between beyond both
    by each either else ever every everything far few for from here how in is it least less many mine more most much
    near neither never none not nothing now of on once only other others ours over own same some something such that
    theirs then there these they this those through to too under we what when where whether which who whole whose why
    with within without yet you
"""
FUNCTION_WORDS = frozenset(_FUNCTION_WORDS.split())
QUESTION_WORDS = frozenset({"how", "what", "when", "where", "whether", "which", "who", "whose", "why"})
_PREPOSITIONS = """
    about above across after against as at before behind below beside between beyond by for from in of on over per since
    through to under until with within without
"""
PREPOSITIONS = frozenset(_PREPOSITIONS.split())
_FIRST_WORD = re.compile(r"[^A-Za-z]*([A-Za-z]+)")
_WORD_IN_CLASS = re.compile(r"[A-Z][a-z0-9]*")
# Strings and comments are matched together, since each may contain the start of the other.
_TEXTS = re.compile(
    r"""(?P<quotes>\"{3}|'{3})(?:\\.|.)*?(?P=quotes) | "(?:\\.|[^"\\])*" | '(?:\\.|[^'\\])*' | (?P<comment>\#[^\n]*)""",
    re.VERBOSE | re.DOTALL,
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_DocstringNode = ast.Module | ast.ClassDef | _Function
_Scope = ast.Module | ast.ClassDef | _Function | ast.Lambda


@dataclass
class Size:
    """The counts of a package.

    Attributes:
        rooms: the counts of all columns for each room (a folder of the package, or `.`).
    """

    rooms: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    places: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    classes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    imports: dict[str, set[str]] = field(default_factory=dict)
    longest: tuple[int, str] = (0, "")

    def total(self, column: str) -> int:
        """Return a column's sum over all rooms."""
        return sum(counts[column] for counts in self.rooms.values())

    def find_shared_class_names(self) -> list[str]:
        """Return the names that several classes share."""
        return sorted(name for name, files in self.classes.items() if len(files) > 1)

    def find_circles(self) -> list[list[str]]:
        """Find groups of files that import each other, directly or indirectly (strongly connected components)."""
        reachable = {file: self._find_reachable(file) for file in self.imports}
        circles = {
            tuple(sorted(target for target in targets if file in reachable.get(target, ())))
            for file, targets in reachable.items()
        }
        return sorted(list(circle) for circle in circles if len(circle) > 1)

    def _find_reachable(self, file: str) -> set[str]:
        reachable: set[str] = set()
        pending = [file]
        while pending:
            for target in self.imports.get(pending.pop(), ()):
                if target not in reachable:
                    reachable.add(target)
                    pending.append(target)
        return reachable


def measure(folder: Path) -> Size:
    """Count the `.py` files of a package and their contents."""
    size = Size()
    paths = sorted(folder.rglob("*.py"))
    modules = {_name_module(path, folder): str(path.relative_to(folder)) for path in paths}
    for path in paths:
        text = path.read_text(encoding="utf-8")
        file = str(path.relative_to(folder))
        counts = size.rooms[Path(file).parts[0] if path.parent != folder else "."]
        nodes = list(ast.walk(ast.parse(text)))
        docstrings = find_docstring_lines(nodes)
        counts["files"] += 1
        counts["lines"] += len(text.splitlines())
        counts["code"] += len(find_code_lines(text) - docstrings)
        counts["docs"] += len(docstrings)
        size.longest = max(size.longest, (len(text.splitlines()), file))
        imports = [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]
        counts["imports"] += sum(_count_lines(node) for node in imports)
        size.imports[file] = {modules[name] for node in imports for name in _name_imports(node) if name in modules}
        for column, places in (_find_places(nodes) | _find_words(nodes, text)).items():
            counts[column] += len(places)
            size.places[column] += [f"{folder.name}/{file}:{line} {label}".rstrip() for line, label in places]
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                size.classes[node.name].append(file)
    return size


def find_code_lines(text: str) -> set[int]:
    """Find the lines of a file that hold code or a docstring."""
    lines = _TEXTS.sub(_mark_lines, text).split("\n")
    return {number for number, line in enumerate(lines, start=1) if line and not line.isspace()}


def _mark_lines(match: re.Match[str]) -> str:
    """Replace each line of a string by a mark, and remove a comment."""
    return "" if match["comment"] else "\n".join("x" * (match[0].count("\n") + 1))


def find_docstring_lines(nodes: Iterable[ast.AST]) -> set[int]:
    """Find the lines of a file that belong to a docstring."""
    statements = [node.body[0] for node in nodes if isinstance(node, _DocstringNode) and ast.get_docstring(node)]
    return {line for node in statements for line in range(node.lineno, (node.end_lineno or 0) + 1)}


def count_parameters(function: _Function) -> int:
    """Count the parameters of a function, without `self` and `cls`."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def begins_with_verb(name: str) -> bool:
    """Return True if a function's name begins with a verb; leading underscores are ignored."""
    return name.lstrip("_").split("_")[0] in VERBS


def _find_places(nodes: Sequence[ast.AST]) -> dict[str, list[tuple[int, str]]]:
    """Find the lines and names that each of `COLUMNS` counts."""
    places: dict[str, list[tuple[int, str]]] = {}
    indexing = [node for node in nodes if isinstance(node, ast.Subscript | ast.Call) and _indexes_by_string(node)]
    places["keys"] = [(line, "") for line in sorted({node.lineno for node in indexing})]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    places["any"] = [(node.lineno, "") for node in names if node.id == "Any"]
    statements = [node for node in nodes if isinstance(node, ast.stmt)]
    asserts = [node for node in statements if isinstance(node, ast.Assert)]
    places["not_none"] = [(node.lineno, "") for node in asserts if _asks_not_none(node)]
    functions = [node for node in statements if isinstance(node, _Function)]
    uses = Counter(node.id for node in names)
    uses.update(node.attr for node in nodes if isinstance(node, ast.Attribute))
    places["crumbs"] = [(node.lineno, node.name) for node in functions if _is_crumb(node) and uses[node.name] == 1]
    parcels = [node for node in statements if isinstance(node, ast.ClassDef) and _is_parcel(node)]
    places["parcels"] = [(node.lineno, node.name) for node in parcels]
    callables = [node for node in functions if not _is_property(node) and not node.name.startswith("__")]
    places["functions"] = [(node.lineno, node.name) for node in callables]
    places["nouns"] = [(node.lineno, node.name) for node in callables if not begins_with_verb(node.name)]
    long_signatures = [node for node in functions if count_parameters(node) > MANY_PARAMETERS]
    places["many"] = [(node.lineno, f"{node.name}, {count_parameters(node)}") for node in long_signatures]
    return places


def _find_words(nodes: Sequence[ast.AST], text: str) -> dict[str, list[tuple[int, str]]]:
    """Find the lines and texts of the names and sentences that each of `WORD_COLUMNS` counts."""
    names = [name for node in nodes if isinstance(node, _Scope) for name in _list_bindings(node)]
    words = [(line, name, name.strip("_")) for line, name in names]
    nodes_with_docstring = [node for node in nodes if isinstance(node, _DocstringNode) and ast.get_docstring(node)]
    docstrings = [(node.body[0].lineno, str(ast.get_docstring(node)).splitlines()[0]) for node in nodes_with_docstring]
    comments = _list_comments(text)
    classes = [(node.lineno, node.name) for node in nodes if isinstance(node, ast.ClassDef)]
    return {
        "names": names,
        "participles": [(line, name) for line, name, word in words if is_participle(word)],
        "fillers": [(line, name) for line, name, word in words if word in FUNCTION_WORDS],
        "docstrings": docstrings,
        "questions": [(line, first) for line, first in docstrings if read_first_word(first) in QUESTION_WORDS],
        "openers": [(line, first) for line, first in docstrings if read_first_word(first) in PREPOSITIONS],
        "comments": comments,
        "fragments": [(line, first) for line, first in comments if read_first_word(first) in {"what", "of"}],
        "verbal": [(line, name) for line, name in classes if _has_participle(name)],
    }


def is_participle(word: str) -> bool:
    """Return whether a single word is a past participle."""
    regular = word.isalpha() and word.endswith("ed") and len(word) > len("need")
    return (regular and word not in NO_PARTICIPLES) or word in IRREGULAR


def read_first_word(sentence: str) -> str:
    """Return the first word of a docstring or a comment in lower case, or an empty string."""
    match = _FIRST_WORD.match(sentence)
    return match[1].lower() if match else ""


def _has_participle(name: str) -> bool:
    words = [word.lower() for word in _WORD_IN_CLASS.findall(name)]
    return any(map(is_participle, words[:1] + words[-1:]))


def _list_bindings(scope: _Scope) -> list[tuple[int, str]]:
    """List (line, name) of the names that a scope binds, each once; functions, classes and imports are left out."""
    bindings: dict[str, int] = {}
    if not isinstance(scope, ast.Module | ast.ClassDef):
        bindings |= {
            argument.arg: argument.lineno for argument in ast.walk(scope.args) if isinstance(argument, ast.arg)
        }
    pending: list[ast.AST] = [*scope.body] if isinstance(scope.body, list) else [scope.body]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bindings.setdefault(node.id, node.lineno)
        if isinstance(node, ast.ExceptHandler) and node.name:
            bindings.setdefault(node.name, node.lineno)
        if not isinstance(node, _Scope):
            pending.extend(ast.iter_child_nodes(node))
    return [(line, name) for name, line in bindings.items() if name not in {"self", "cls", "_"} and name[:2] != "__"]


def _list_comments(text: str) -> list[tuple[int, str]]:
    """List (line, text) of each comment; consecutive lines form one comment, and directives to tools are left out."""
    comments: list[tuple[int, str]] = []
    last_line = 0
    for match in _TEXTS.finditer(text):
        comment = match["comment"]
        if comment is None or comment.startswith(("# noqa", "# type:", "#!")):
            continue
        line = text.count("\n", 0, match.start()) + 1
        is_alone = not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip()
        if not is_alone or line != last_line + 1:
            comments.append((line, comment))
        last_line = line if is_alone else 0
    return comments


def _indexes_by_string(node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        # `Literal["a"]` and other types do not count.
        is_type = isinstance(node.value, ast.Name) and node.value.id[:1].isupper()
        return not is_type and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        return isinstance(node.args[0], ast.Constant) and isinstance(node.args[0].value, str)
    return False


def _asks_not_none(node: ast.Assert) -> bool:
    comparisons = [part for part in ast.walk(node.test) if isinstance(part, ast.Compare)]
    return any(isinstance(operator, ast.IsNot) for part in comparisons for operator in part.ops)


def _is_crumb(node: _Function) -> bool:
    is_private = node.name.startswith("_") and not node.name.startswith("__")
    return is_private and not _is_property(node) and _count_lines(node) <= CRUMB_LINES


def _is_parcel(node: ast.ClassDef) -> bool:
    fields = [part for part in node.body if isinstance(part, ast.AnnAssign)]
    has_methods = any(isinstance(part, _Function) for part in node.body)
    is_dataclass = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    return is_dataclass and not has_methods and not node.bases and 0 < len(fields) <= PARCEL_FIELDS


def _is_property(node: _Function) -> bool:
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any("property" in decorator or decorator.endswith(".setter") for decorator in decorators)


def _count_lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def _name_module(path: Path, folder: Path) -> str:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _name_imports(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)]


def print_table(size: Size) -> None:
    """Print a row for each room, their sums, and the counts of the entire package."""
    rows = [(room, counts) for room, counts in sorted(size.rooms.items(), key=lambda row: -row[1]["code"])]
    rows.append(("together", Counter({column: size.total(column) for column in (*COLUMNS, *WORD_COLUMNS)})))
    for columns in (COLUMNS, WORD_COLUMNS):
        widths = {column: max(9, len(column)) for column in columns}
        sys.stdout.write(" ".join([f"{'':<14}", *(f"{name:>{width}}" for name, width in widths.items())]) + "\n")
        for room, counts in rows:
            numbers = (f"{counts[name]:>{width},}" for name, width in widths.items())
            sys.stdout.write(" ".join([f"{room:<14}", *numbers]) + "\n")
        for column, meaning in columns.items():
            sys.stdout.write(f"{column}: {meaning}\n")
    functions = size.total("functions") or 1
    sys.stdout.write(f"begin with a verb: {100 - 100 * size.total('nouns') / functions:.0f} % of the functions\n")
    sys.stdout.write(f"longest file: {size.longest[1]}, {size.longest[0]} lines\n")
    shared_names = size.find_shared_class_names()
    sys.stdout.write(f"names that stand for several classes: {len(shared_names)} {' '.join(shared_names)}\n")
    circles = size.find_circles()
    sys.stdout.write(f"circles of files: {len(circles)}\n" + "".join(f"  {' '.join(circle)}\n" for circle in circles))


def main() -> None:
    """Print the table, or the places of one column."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", metavar="MEASURE", choices=[*_find_places([]), *WORD_COLUMNS])
    package = Path(__file__).parents[1] / "iree_gauntlet"
    parser.add_argument("folder", nargs="?", type=Path, default=package)
    arguments = parser.parse_args()
    size = measure(arguments.folder)
    if arguments.places:
        sys.stdout.write("".join(f"{place}\n" for place in size.places[arguments.places]))
    else:
        print_table(size)


if __name__ == "__main__":
    main()
