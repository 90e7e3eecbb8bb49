"""What every model of Hostler is made of."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable value that refuses fields it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Lenient(BaseModel):
    """An immutable value that crosses versions: fields of a newer release are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
