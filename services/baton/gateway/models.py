"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

import msgspec

from baton.gateway.catalog import ModelCatalog
from baton.text.dialect import NONE, Dialect


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
    object: str = "model"


class ModelListBody(msgspec.Struct):
    """OpenAI's list of models."""

    data: list[ModelBody]
    object: str = "list"


class Models:
    """Answers for the models of a gateway."""

    def __init__(self, catalog: ModelCatalog, dialect: Dialect, *, created_seconds: int) -> None:
        self._catalog = catalog
        self._dialect = dialect
        self._created_seconds = created_seconds

    def list_body(self) -> bytes:
        """Return all models."""
        return msgspec.json.encode(ModelListBody([self._model()]))

    def model_body(self, name: str) -> bytes:
        """Return one model.

        Raises:
            NotFoundError: If it is not served.
        """
        self._catalog.check_name(name)
        return msgspec.json.encode(self._model())

    def _model(self) -> ModelBody:
        return ModelBody(
            id=self._catalog.model_name,
            created=self._created_seconds,
            owned_by="baton",
            max_context_tokens=self._catalog.max_context_tokens,
            tool_call_parser=self._dialect.tool_format or NONE,
            reasoning_parser=self._dialect.reasoning_format or NONE,
        )
