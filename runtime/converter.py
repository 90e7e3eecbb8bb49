"""How values become payloads and come back. Whatever comes in, nothing here wedges a run.

Temporal tries a workflow task again for ever when an exception that is not a Temporal failure leaves a converter. So
every value that does not fit, every unknown encoding and every odd failure ends as one "PayloadValidationError", whose
details are fixed words: names of types and kinds of problems, never the value (S-8).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, cast

from google.protobuf.message import Message
from pydantic import TypeAdapter, ValidationError
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.common import RawValue
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    DataConverter,
    create_payload_validation_error,
)
from temporalio.exceptions import ApplicationError

from runtime.failures import SealedFailureConverter, ValidatingFailureConverter
from runtime.seal import Seal

_PROBLEMS_SHOWN = 5


class ValidatingPayloadConverter(PydanticPayloadConverter):
    """Convert with pydantic, and raise nothing but payload validation errors when a payload is not as wanted."""

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Convert each payload to its hint; raise "PayloadValidationError" for any that does not fit."""
        hints: Sequence[type | None] = type_hints or []
        pairs = list(zip_longest(payloads, hints[: len(payloads)]))
        return [self._convert(payload, hint) for payload, hint in pairs]

    def _convert(self, payload: Payload, hint: type | None) -> Any:
        if hint is RawValue:
            return RawValue(payload)
        encoding = payload.metadata.get("encoding", b"")
        converter = self.converters.get(encoding)
        if converter is None:
            raise _refusal(hint, ["sealed_for_another_or_unknown_encoding"])
        problems: list[str]
        try:
            value = converter.from_payload(payload, hint)
            return value if encoding == b"json/plain" else _checked(value, hint)
        except ApplicationError:
            raise
        except ValidationError as error:
            kinds = [str(problem["type"]) for problem in error.errors(include_url=False, include_input=False)]
            problems = sorted(set(kinds))[:_PROBLEMS_SHOWN]
        except Exception as error:
            problems = [type(error).__name__]
        # Raised outside the handlers: a chained error would carry the value's text into the history.
        raise _refusal(hint, problems)


def _checked(value: Any, hint: type | None) -> Any:
    """Hold what is not JSON to its hint too: a null or some bytes are no model."""
    if hint is None or hint is cast("type", Any):
        return value
    if isinstance(value, Message):
        if isinstance(value, hint):
            return value
        raise TypeError
    return cast("Any", TypeAdapter(hint)).validate_python(value, strict=True)


def _refusal(hint: type | None, problems: list[str]) -> ApplicationError:
    return create_payload_validation_error(
        {"expected": getattr(hint, "__name__", "a value") if hint else "a value", "problems": problems}
    )


class GuardedDataConverter(DataConverter):
    """A data converter that knows no storage elsewhere: the SDK's own raises at a reference, outside every converter.

    A reference is a payload as any other here: not sealed, or of a type that nobody asked for.
    """

    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def _external_retrieve_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def _transform_inbound_payload(self, payload: Payload) -> Payload:
        return payload if self.payload_codec is None else (await self.payload_codec.decode([payload]))[0]

    async def _transform_inbound_payloads(self, payloads: Payloads) -> None:
        if self.payload_codec is not None:
            await self.payload_codec.decode_wrapper(payloads)


def data_converter(seal: Seal | None) -> DataConverter:
    """Return the converter of a process; without a seal nothing is sealed, and no sealed failure is asked for."""
    if seal is None:
        return GuardedDataConverter(
            payload_converter_class=ValidatingPayloadConverter,
            failure_converter_class=ValidatingFailureConverter,
        )
    return GuardedDataConverter(
        payload_converter_class=ValidatingPayloadConverter,
        payload_codec=seal,
        failure_converter_class=SealedFailureConverter,
    )
