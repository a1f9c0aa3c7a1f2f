"""The `data` section of a recipe: which texts to train on, and how they become documents."""

from typing import Any, Literal

from pydantic import Field, model_validator

from setblock.section import Section

LossOn = Literal["assistant", "all"]
TooLong = Literal["error", "drop", "truncate"]
SpecialTokens = Literal["error", "drop", "spell", "keep"]


class _Texts(Section):
    """The place of texts, and the columns that hold them."""

    name: str | None = Field(None, description="configuration (subset) of a hub data set")
    split: str = Field("train", description="split of a hub data set or a task; local files have none")
    revision: str | None = Field(None, description="commit, tag or branch of a hub data set")
    documents: int | None = Field(None, ge=1, description="take only this many, from the start; null: all")
    messages_column: str | None = Field(None, description="column of chats; null: `messages`")
    prompt_column: str | None = Field(None, description="column of prompts; null: `prompt`")
    completion_column: str | None = Field(None, description="column of completions; null: `completion`")
    text_column: str | None = Field(None, description="column of plain texts; null: `text`")

    @model_validator(mode="after")
    def _one_shape(self) -> "_Texts":
        if (self.prompt_column is None) != (self.completion_column is None):
            raise ValueError("prompt_column and completion_column go together")
        shapes = ("messages_column", "prompt_column", "text_column")
        named = [name for name in shapes if getattr(self, name) is not None]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} exclude each other: a document has one shape")
        return self


class SourceSection(_Texts):
    """One source of a mixture."""

    source: str = Field(description="a file, folder or glob pattern, a task, or a hub id")
    weight: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="relative share of the documents that come from this source"
    )
    seed: int = Field(0, description="seed of a task's examples")


class EvaluationSection(_Texts):
    """The texts to evaluate on. Keys that are left out, except `documents`, are those of the training data. With a
    mixture and no `source` here, this section applies to each source of the mixture."""

    source: str | None = Field(None, description="as `data.source`; null: the source of the training data")


class DataSection(_Texts):
    """The texts: one source or a mixture of tasks, local files and hub data sets."""

    source: str | None = Field(None, description="a file, folder or glob pattern, a task, or a hub id")
    mixture: tuple[SourceSection, ...] | None = Field(None, min_length=1, description="several sources in one epoch")
    seed: int = Field(0, description="seed of a task's examples and of the mixture")
    loss_on: LossOn = Field("assistant", description="what carries loss: completions and assistant messages, or all")
    special_tokens: SpecialTokens = Field(
        "error", description="what to do with a document whose text contains the name of a special token"
    )
    chat_template: str | None = Field(None, description="a Jinja file to use instead of the tokenizer's template")
    row_length: int | None = Field(
        None, ge=2, description="pack documents into rows of this many tokens; null: one document per row"
    )
    too_long: TooLong = Field("error", description="what to do with a document longer than a row or the context")
    evaluation: EvaluationSection | None = Field(None, description="texts to evaluate on, see below")
    evaluation_fraction: float | None = Field(
        None, gt=0, lt=1, description="share of the documents to hold out for evaluation"
    )
    # Excluded from the run's record: a run may resume with its tokenised data elsewhere.
    tokenised: str | None = Field(
        None, exclude=True, description="folder that `setblock data tokenise` made of this section; null: tokenise now"
    )

    @model_validator(mode="after")
    def _fits_together(self) -> "DataSection":
        if (self.source is None) == (self.mixture is None):
            raise ValueError("give either source, such as word-problems, or mixture")
        for name in sorted(_Texts.model_fields.keys() & self.model_fields_set) if self.mixture else ():
            raise ValueError(f"{name} belongs inside each source of the mixture")
        if self.evaluation is not None and self.evaluation_fraction is not None:
            raise ValueError("give either evaluation or evaluation_fraction")
        if self.evaluation is not None and self.mixture and not self.evaluation.model_fields_set & {"source", "split"}:
            raise ValueError("with a mixture, evaluation needs its own source or split")
        return self

    @property
    def sources(self) -> tuple[SourceSection, ...]:
        """Return the sources of the mixture, or the only one."""
        if self.mixture is not None:
            return self.mixture
        return (SourceSection(**self.model_dump(include=set(SourceSection.model_fields))),)

    @property
    def parts(self) -> "dict[str, DataSection]":
        """Return the parts: `train`, this section, and `evaluation`, the section of the texts to evaluate on, if there
        are separate ones."""
        if self.evaluation is None:
            return {"train": self}
        given = {"documents": None} | self.evaluation.model_dump(exclude_unset=True)
        if self.mixture is not None and self.evaluation.source is None:
            changed: dict[str, Any] = {"mixture": tuple(source.model_copy(update=given) for source in self.mixture)}
        else:
            # Where evaluation names columns, none is inherited: they may name another shape.
            columns = [name for name in _Texts.model_fields if name.endswith("_column")]
            changed = {"mixture": None} | (dict.fromkeys(columns) if given.keys() & columns else {}) | given
        return {"train": self, "evaluation": self.model_copy(update={"evaluation": None} | changed)}
