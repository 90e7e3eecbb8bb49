"""How errors become Temporal failures and come back: sealed on a host's queue, else fixed words (S-3, S-4, S-8)."""

from __future__ import annotations

from typing import Any, cast

from temporalio.api.failure.v1 import Failure
from temporalio.converter import (
    ActivitySerializationContext,
    DefaultFailureConverter,
    PayloadConverter,
    SerializationContext,
    WithSerializationContext,
    create_payload_validation_error,
)
from temporalio.exceptions import ApplicationError

PAYLOAD_ERROR = "PayloadValidationError"
_SEALED_MESSAGE = "sealed"

# What the server itself says of an activity; its text is replaced, since anyone can send one by id.
_SERVER_WORDS = {
    "activity_failure_info": "the step failed",
    "timeout_failure_info": "the step timed out",
    "canceled_failure_info": "the step was cancelled",
    "terminated_failure_info": "the run was terminated",
    "server_failure_info": "Temporal failed",
    None: "the step failed",
}


class ValidatingFailureConverter(DefaultFailureConverter):
    """Convert failures in clear. What cannot be converted becomes a payload validation error, never an exception."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Write an exception; texts that came sealed do not go on in clear."""
        super().to_failure(exception, payload_converter, failure)
        _hide_sealed_texts(failure)

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """Read a failure of any content, unknown encodings and numbers included."""
        try:
            return super().from_failure(failure, payload_converter)
        except Exception:
            return _refused()


class SealedFailureConverter(ValidatingFailureConverter, WithSerializationContext):
    """Seal message and type of a remote activity's failure, and believe no other (S-4)."""

    def __init__(self) -> None:
        super().__init__()
        self._sealed = False

    def with_context(self, context: SerializationContext) -> SealedFailureConverter:
        """Return a converter for one run or activity."""
        converter = SealedFailureConverter()
        converter._sealed = isinstance(context, ActivitySerializationContext) and not context.is_local
        return converter

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Write a step's exception as message and type, which the codec seals; its causes stay in the host's log."""
        if not self._sealed:
            super().to_failure(exception, payload_converter, failure)
            return
        DefaultFailureConverter.to_failure(self, _without_cause(exception), payload_converter, failure)
        application = failure.application_failure_info
        if failure.WhichOneof("failure_info") == "application_failure_info":
            sealed = {"message": failure.message, "type": application.type, "final": application.non_retryable}
            failure.encoded_attributes.CopyFrom(payload_converter.to_payloads([sealed])[0])
        failure.message = _SEALED_MESSAGE
        failure.stack_trace = ""
        failure.ClearField("cause")

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """Read a step's failure; one of the application that is not sealed becomes a payload validation error."""
        if not self._sealed:
            return super().from_failure(failure, payload_converter)
        try:
            kind = failure.WhichOneof("failure_info")
            if kind == "application_failure_info":
                return _open_application(failure, payload_converter)
            if kind not in _SERVER_WORDS:
                return _refused()
            return super().from_failure(_server_failure(failure), payload_converter)
        except Exception:
            return _refused()


def _refused() -> ApplicationError:
    return create_payload_validation_error({"expected": "a sealed failure", "problems": ["unsealed"]})


def _without_cause(exception: BaseException) -> BaseException:
    """Say a refused argument or heartbeat by its own type: the SDK wraps it into an error that would be tried again."""
    cause = exception.__cause__
    if isinstance(cause, ApplicationError) and cause.type == PAYLOAD_ERROR:
        exception = cause
    if not isinstance(exception, ApplicationError):
        return exception
    return ApplicationError(
        exception.message,
        *exception.details,
        type=exception.type,
        non_retryable=exception.non_retryable,
        next_retry_delay=exception.next_retry_delay,
        category=exception.category,
    )


def _open_application(failure: Failure, payload_converter: PayloadConverter) -> ApplicationError:
    if not failure.HasField("encoded_attributes"):
        return _refused()
    opened: Any = payload_converter.from_payloads([failure.encoded_attributes])[0]
    if not isinstance(opened, dict):
        return _refused()
    sealed = cast("dict[str, Any]", opened)
    return ApplicationError(
        str(sealed.get("message") or "the step failed"),
        *payload_converter.from_payloads_wrapper(failure.application_failure_info.details),
        type=str(sealed.get("type") or "StepFailed"),
        non_retryable=bool(sealed.get("final")),
    )


def _server_failure(failure: Failure) -> Failure:
    """Copy what the server says of a step without any text or payload that another may have put in."""
    kind = failure.WhichOneof("failure_info")
    copy = Failure()
    copy.CopyFrom(failure)
    copy.message = _SERVER_WORDS[kind]
    copy.stack_trace = ""
    copy.ClearField("encoded_attributes")
    if kind == "timeout_failure_info":
        copy.timeout_failure_info.ClearField("last_heartbeat_details")
    elif kind == "canceled_failure_info":
        copy.canceled_failure_info.ClearField("details")
    return copy


def _hide_sealed_texts(failure: Failure) -> None:
    """Take out of a failure, and of its causes, what had come sealed: a run that raises it shows its type."""
    if failure.HasField("encoded_attributes"):
        failure.message = _SEALED_MESSAGE
        failure.ClearField("encoded_attributes")
        if failure.HasField("application_failure_info"):
            failure.application_failure_info.ClearField("details")
    if failure.HasField("cause"):
        _hide_sealed_texts(failure.cause)
