"""The table of routes: which function answers which path, and who may ask it."""

from __future__ import annotations

from functools import partial
from typing import Any

from baton.gateway.api import tokenize
from baton.gateway.api.anthropic import schema
from baton.gateway.api.anthropic.endpoint import answer_count_tokens, answer_messages
from baton.gateway.api.anthropic.errors import ANTHROPIC_ERRORS
from baton.gateway.api.anthropic.schema import UNSERVED as ANTHROPIC_UNSERVED
from baton.gateway.api.endpoint import Access, Endpoint
from baton.gateway.api.exo.bench import BenchAnswer, BenchBody, BenchEndpoint
from baton.gateway.api.exo.endpoints import PREVIEW_PARAMETERS, ExoApi
from baton.gateway.api.exo.instances import InstanceBody, LinkBody
from baton.gateway.api.openai.chat import answer_chat
from baton.gateway.api.openai.completions import answer_completion
from baton.gateway.api.openai.errors import OPENAI_ERRORS
from baton.gateway.api.openai.schema import MESSAGE_UNSERVED, ChatAnswer, ChatBody, CompletionAnswer, CompletionBody
from baton.gateway.api.openai.schema import UNSERVED as OPENAI_UNSERVED
from baton.gateway.api.pages import ModelBody, ModelListBody, Pages
from baton.gateway.api.responses.answer import RESPONSES_ERRORS
from baton.gateway.api.responses.endpoint import answer_responses
from baton.gateway.api.responses.schema import UNSERVED as RESPONSES_UNSERVED
from baton.gateway.api.responses.schema import ResponseObject, ResponsesBody
from baton.gateway.api.tolerance import PROMISES, Unserved
from baton.gateway.api.ui.page import InviteBody, Ui
from baton.gateway.generation.generator import TextGenerator
from baton.telemetry import names

_IN_PATH = {"in": "path", "required": True, "schema": {"type": "string"}}


def model_endpoints(generator: TextGenerator, bench: BenchEndpoint) -> list[Endpoint]:
    """Return what asks something of the model; all of it is admitted, traced and limited in time."""
    return [*_foreign_endpoints(generator), *_own_endpoints(generator, bench)]


def _foreign_endpoints(generator: TextGenerator) -> list[Endpoint]:
    """Return those of OpenAI's and Anthropic's APIs."""
    post = partial(Endpoint, "POST", operation=names.OPERATION_CHAT)
    openai = partial(post, unserved=OPENAI_UNSERVED, errors=OPENAI_ERRORS)
    anthropic = partial(post, errors=ANTHROPIC_ERRORS, request_id_header="request-id")
    return [
        openai(
            "/v1/chat/completions",
            partial(answer_chat, generator),
            "Answer a chat completion.",
            ChatAnswer,
            body=ChatBody,
        ),
        openai(
            "/v1/completions",
            partial(answer_completion, generator),
            "Answer a text completion.",
            CompletionAnswer,
            body=CompletionBody,
            operation=names.OPERATION_TEXT_COMPLETION,
        ),
        post(
            "/v1/responses",
            partial(answer_responses, generator),
            "Answer an input.",
            ResponseObject,
            body=ResponsesBody,
            unserved=RESPONSES_UNSERVED,
            errors=RESPONSES_ERRORS,
        ),
        anthropic(
            "/v1/messages",
            partial(answer_messages, generator),
            "Answer a conversation.",
            schema.MessageAnswer,
            body=schema.MessagesBody,
            unserved=ANTHROPIC_UNSERVED,
        ),
        anthropic(
            "/v1/messages/count_tokens",
            partial(answer_count_tokens, generator),
            "Answer with the number of a conversation's tokens.",
            schema.CountAnswer,
            body=schema.ConversationBody,
            unserved=schema.COUNT_UNSERVED,
            operation=names.OPERATION_TOKENIZE,
        ),
    ]


def _own_endpoints(generator: TextGenerator, bench: BenchEndpoint) -> list[Endpoint]:
    post = partial(Endpoint, "POST")
    return [
        post(
            "/tokenize",
            partial(tokenize.answer_tokenize, generator),
            "Answer with the tokens of a text or a conversation.",
            tokenize.TokenizeAnswer,
            body=tokenize.TokenizeBody,
            unserved=tokenize.UNSERVED,
            operation=names.OPERATION_TOKENIZE,
        ),
        post(
            "/detokenize",
            partial(tokenize.answer_detokenize, generator),
            "Answer with the text of tokens.",
            tokenize.DetokenizeAnswer,
            body=tokenize.DetokenizeBody,
            operation=names.OPERATION_DETOKENIZE,
        ),
        post(
            "/bench/chat/completions",
            partial(bench.answer_bench, generator),
            "Answer a chat completion for measurements: cold caches, exactly `max_tokens` tokens, and its figures.",
            BenchAnswer,
            body=BenchBody,
            unserved=Unserved({**PROMISES, **MESSAGE_UNSERVED.promises}, MESSAGE_UNSERVED.hints),
            operation=names.OPERATION_CHAT,
        ),
    ]


def page_endpoints(pages: Pages) -> list[Endpoint]:
    """Return what is answered from what the gateway knows."""
    status, model = dict[str, str], [{"name": "model", **_IN_PATH}]
    is_open, lists, one = Access.OPEN, ModelListBody | schema.ModelPage, ModelBody | schema.ModelObject
    get = partial(Endpoint, "GET")
    return [
        get("/v1/models", pages.send_models, "The models that are served.", lists),
        get("/v1/models/{model}", pages.send_model, "One model.", one, parameters=model),
        get("/health", pages.send_health, "Whether the process is alive.", status, access=is_open),
        get("/ping", pages.send_health, "The same, as SageMaker asks.", status, access=is_open),
        Endpoint("POST", "/ping", pages.send_health, "The same.", status, access=is_open),
        get("/ready", pages.send_ready, "Whether requests can be served, and if not, why.", status, access=is_open),
        get("/version", pages.send_version, "Version of Baton.", status, access=is_open),
        get("/metrics", pages.send_metrics, "Metrics in Prometheus's text format.", None, access=Access.ADMIN),
        get("/openapi.json", pages.send_openapi, "This API.", None, access=is_open),
        *(get(path, pages.send_docs, access=is_open) for path in ("/docs", "/docs.css", "/docs.js")),
    ]


def exo_endpoints(exo: ExoApi) -> list[Endpoint]:
    """Return what tools for exo's cluster ask; it shows and pins nodes, so that it is for administrators."""
    part, instance, link = ([{"name": name, **_IN_PATH}] for name in ("path", "instance_id", "link_id"))
    get, post, delete = (partial(Endpoint, method) for method in ("GET", "POST", "DELETE"))
    rows = [
        get("/models", exo.send_models, "The models that are served, as exo lists them."),
        get("/state", exo.send_state, "Instances, runners, and what the nodes' sensors say."),
        get(
            "/state/{path}", exo.send_state, "A part of the state, its keys separated by slashes.", Any, parameters=part
        ),
        get(
            "/instance/previews",
            exo.send_previews,
            "The placements that the router would consider for a request, cheapest first.",
            parameters=PREVIEW_PARAMETERS,
        ),
        post(
            "/instance",
            exo.create_instance,
            "Hold benchmark requests of a model to the nodes of a preview; other requests go anywhere.",
            body=InstanceBody,
        ),
        get("/instance/{instance_id}", exo.send_instance, "A pinned placement.", parameters=instance),
        delete("/instance/{instance_id}", exo.delete_instance, "Lift a pin; no process ends.", parameters=instance),
        get("/v1/instance-links", exo.send_links, "The links between pinned placements.", list[Any]),
        post(
            "/v1/instance-links",
            exo.create_link,
            "Have pinned placements compute the prompts of others.",
            body=LinkBody,
        ),
        delete("/v1/instance-links/{link_id}", exo.delete_link, "End a link.", parameters=link),
    ]
    return [row._replace(access=Access.ADMIN) for row in rows]


def ui_endpoints(ui: Ui, *, can_invite: bool) -> list[Endpoint]:
    """Return the page's files, which hold nothing of anyone's, and what it shows and does, which is administrators'."""
    rows = [Endpoint("GET", path, ui.send_file, access=Access.OPEN) for path in ui.paths]
    rows += [Endpoint("GET", "/ui/state", ui.send_state, access=Access.ADMIN)]
    return rows + [Endpoint("POST", "/ui/invite", ui.invite, body=InviteBody, access=Access.ADMIN)] * can_invite
