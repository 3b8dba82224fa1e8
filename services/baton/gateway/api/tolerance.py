"""What a body holds beyond what is served: it is left out and named in the answer, or refused where it is a promise."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import inspect

from baton.gateway.api.errors import ApiError, refused, unsupported

MAX_UNKNOWN_FIELDS = 4096
"""Fields of one body that may be left out; more is no client's habit."""
_INDEX = re.compile(r"\[\d+\]")

Ignore: TypeAlias = Callable[[str, str], None]
"""Is told the name of what is left out, without indices, and its path in the body; raises where nothing may be."""


class ClosedBody(msgspec.Struct, forbid_unknown_fields=True):
    """Says what the output must be like: what is not known of it is refused, because the output would not be so."""


class Unserved(NamedTuple):
    """Fields that an API has, or servers like this one, and that no body here declares; by name, as `tools[].strict`.

    Each has the values, beside null, that ask for nothing: they are taken without a word.
    """

    promises: Mapping[str, tuple[object, ...]] = {}
    """Without them the answer would not be what was asked for: other values are refused."""
    hints: Mapping[str, tuple[object, ...]] = {}
    """Without them it is: other values are left out as unknown fields are."""
    reasons: Mapping[str, str] = {}
    """What to do without some of the promises."""


PROMISES: Mapping[str, tuple[object, ...]] = {
    **dict.fromkeys(("allowed_token_ids", "chat_template", "grammar", "guided_choice", "guided_grammar"), ()),
    **dict.fromkeys(("guided_json", "guided_regex", "json_schema", "max_completion_tokens", "max_output_tokens"), ()),
    **dict.fromkeys(("max_tokens", "messages", "prompt", "prompt_embeds", "prompt_logprobs", "regex", "seed"), ()),
    **dict.fromkeys(("structural_tag", "temperature", "truncate_prompt_tokens"), ()),
    **dict.fromkeys(("bad_words", "documents", "logits_processors", "stop", "stop_sequences"), ([],)),
    **dict.fromkeys(("stop_token_ids", "tools"), ([],)),
    **dict.fromkeys(("logit_bias", "structured_outputs"), ({},)),
    **dict.fromkeys(("continue_final_message", "echo", "ignore_eos", "include_stop_str_in_output"), (False,)),
    **dict.fromkeys(("logprobs", "return_token_ids", "use_beam_search"), (False,)),
    **dict.fromkeys(("add_generation_prompt", "detokenize", "skip_special_tokens"), (True,)),
    "spaces_between_special_tokens": (True,),
    **dict.fromkeys(("frequency_penalty", "min_p", "presence_penalty", "top_a"), (0, 0.0)),
    **dict.fromkeys(("min_tokens", "no_repeat_ngram_size", "top_logprobs"), (0,)),
    **dict.fromkeys(("length_penalty", "repetition_penalty", "top_p", "typical_p"), (1, 1.0)),
    **dict.fromkeys(("best_of", "n"), (1,)),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
    "top_k": (-1, 0),
}
"""What decides on the tokens of an output, or on what is told of them, for whichever API does not declare it."""


def without_unserved(raw: Any, body_type: type[msgspec.Struct], unserved: Unserved, ignore: Ignore) -> Any:
    """Return a body without the fields that its type does not declare.

    `raw` is changed; `ignore` is told of all that is left out but asks for something. Raises ApiError 400, naming a
    promise that cannot be kept, or because there are too many.
    """
    found = list(islice(_unknown_fields(raw, inspect.type_info(body_type), ""), MAX_UNKNOWN_FIELDS + 1))
    if len(found) > MAX_UNKNOWN_FIELDS:
        raise ApiError(400, f"The body has more than {MAX_UNKNOWN_FIELDS} unknown fields", code="unknown_parameter")
    for unknown in found:
        value, name = unknown.holder.pop(unknown.key), _INDEX.sub("[]", unknown.path)
        promise, hint = unserved.promises.get(name), unserved.hints.get(name)
        if unknown.is_constraint:
            raise unrecognized(unknown.path)
        if not _is_neutral(value, hint if promise is None else promise):
            if promise is not None:
                raise unsupported(unknown.path, unserved.reasons.get(name, ""))
            ignore(name, unknown.path)
    return raw


def unrecognized(field: str) -> ApiError:
    """Return the error of a field that nobody knows."""
    return refused(field, f"Unrecognized request argument supplied: {field}", code="unknown_parameter")


class _Unknown(NamedTuple):
    holder: dict[str, Any]
    key: str
    path: str
    is_constraint: bool


def _is_neutral(value: object, neutral: tuple[object, ...] | None) -> bool:
    if neutral is None:
        return False
    return value is None or any(value == each and type(value) is type(each) for each in neutral)


def _unknown_fields(value: Any, kind: inspect.Type, path: str) -> Iterator[_Unknown]:
    """Yield the fields of objects that are declared without them."""
    for each in kind.types if isinstance(kind, inspect.UnionType) else (kind,):
        if isinstance(each, inspect.StructType) and isinstance(value, dict):
            types, is_constraint = _field_types(each.cls), issubclass(each.cls, ClosedBody)
            for key, child in value.items():
                child_path = f"{path}.{key}" if path else key
                if key in types:
                    yield from _unknown_fields(child, types[key], child_path)
                else:
                    yield _Unknown(value, key, child_path, is_constraint)
        elif isinstance(each, inspect.ListType) and isinstance(value, list) and _holds_objects(each.item_type):
            for index, child in enumerate(value):
                yield from _unknown_fields(child, each.item_type, f"{path}[{index}]")


def _holds_objects(kind: inspect.Type) -> bool:
    """Return whether there may be declared objects in a value: millions of tokens are not looked at."""
    if isinstance(kind, inspect.UnionType):
        return any(map(_holds_objects, kind.types))
    return isinstance(kind, inspect.StructType)


@cache
def _field_types(body_type: type[msgspec.Struct]) -> Mapping[str, inspect.Type]:
    info = inspect.type_info(body_type)
    assert isinstance(info, inspect.StructType)
    return {field.encode_name: field.type for field in info.fields}
