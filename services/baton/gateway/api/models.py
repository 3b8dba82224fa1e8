"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec

from baton.gateway.cluster.catalog import ModelCatalog
from baton.text.output_format import NONE, OutputFormat


class ModelBody(msgspec.Struct):
    """OpenAI's model object, with the context length."""

    id: str
    created: int
    owned_by: str
    max_context_tokens: int
    """Longest sequence, prompt and output together; 0 while no node has been seen."""
    tool_call_parser: str
    """Format in which the model calls tools."""
    reasoning_parser: str
    """Format in which it marks its reasoning."""
    root: str
    """Name of the model that is loaded: its own, or that of which this is an adapter."""
    parent: str | None
    """Name of the model of which this is an adapter; null: it is none."""
    object: str = "model"


class ModelListBody(msgspec.Struct):
    """OpenAI's list of models."""

    data: list[ModelBody]
    object: str = "list"


class Models:
    """Answers for the models of a gateway."""

    def __init__(self, catalog: ModelCatalog, output_format: OutputFormat, *, created_seconds: int) -> None:
        self._catalog = catalog
        self._output_format = output_format
        self._created_seconds = created_seconds

    def list_body(self) -> bytes:
        """Return the model and its adapters."""
        names = (self._catalog.model_name, *self._catalog.adapter_names)
        return msgspec.json.encode(ModelListBody([self._model(name) for name in names]))

    def model_body(self, name: str) -> bytes:
        """Return one model.

        Raises:
            NotFoundError: If it is not served.
        """
        if name not in self._catalog.adapter_names:
            self._catalog.check_model_name(name)
        return msgspec.json.encode(self._model(name))

    def _model(self, name: str) -> ModelBody:
        model_name = self._catalog.model_name
        return ModelBody(
            id=name,
            created=self._created_seconds,
            owned_by="baton",
            max_context_tokens=self._catalog.max_context_tokens,
            tool_call_parser=self._output_format.tool_format or NONE,
            reasoning_parser=self._output_format.reasoning_format or NONE,
            root=model_name,
            parent=None if name == model_name else model_name,
        )
