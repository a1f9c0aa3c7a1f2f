"""Define the `data` section of a recipe: which texts to train on, and what becomes of them.

Knows the keys and their valid values. Knows nothing of files, tokenizers or rows.
"""

from typing import Literal

from pydantic import Field, model_validator

from setblock.section import Section

LossOn = Literal["assistant", "all"]
TooLong = Literal["error", "drop", "truncate"]
SpecialTokens = Literal["error", "drop", "spell", "keep"]


class _Texts(Section):
    """Say where texts are, and which columns hold them."""

    name: str | None = Field(None, description="configuration (subset) of a hub data set")
    split: str = Field("train", description="split of a hub data set or a task; local files have none")
    revision: str | None = Field(None, description="commit, tag or branch of a hub data set")
    documents: int | None = Field(None, ge=1, description="take only the first so many; null: all that there are")
    messages_column: str | None = None
    prompt_column: str | None = None
    completion_column: str | None = None
    text_column: str | None = None

    @model_validator(mode="after")
    def _one_shape(self) -> "_Texts":
        if (self.prompt_column is None) != (self.completion_column is None):
            raise ValueError("prompt_column and completion_column go together")
        named = [
            name for name in ("messages_column", "prompt_column", "text_column") if getattr(self, name) is not None
        ]
        if len(named) > 1:
            raise ValueError(f"{' and '.join(named)} exclude each other: a document has one shape")
        return self


class SourceSection(_Texts):
    """Describe one source of a mixture."""

    source: str = Field(description="a file, folder or glob pattern, a task, or a hub id")
    weight: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="share of the documents drawn, against the others'"
    )
    seed: int = Field(0, description="of a task's examples")


class EvaluationSection(_Texts):
    """Choose texts to evaluate on. What is not given is as in the training section, `documents` excepted; next to a
    mixture without a separate source, that holds of each of its sources."""

    source: str | None = None


class DataSection(_Texts):
    """Choose the texts of tasks, local files or hub data sets, of one or a mixture."""

    moved = {"evaluation_documents": "evaluation: {split: validation, documents: N}"}  # noqa: RUF012

    source: str | None = Field(None, description="a file, folder or glob pattern, a task, or a hub id")
    mixture: tuple[SourceSection, ...] | None = Field(None, min_length=1, description="several sources in one epoch")
    streaming: bool = Field(False, description="read, tokenise and pack while training; nothing is kept on disk")
    shuffle_buffer: int = Field(1000, ge=1, description="with streaming: documents among which the next one is drawn")
    seed: int = Field(0, description="of a task's examples, and of the mixture's and the shuffle buffer's draws")
    loss_on: LossOn = Field("assistant", description="what carries loss: completions and assistant messages, or all")
    special_tokens: SpecialTokens = Field(
        "error", description="what becomes of a document whose own text spells a special token"
    )
    chat_template: str | None = Field(None, description="a Jinja file to use in place of the tokenizer's own template")
    row_length: int | None = Field(
        None, ge=2, description="pack documents into rows this long; null: a row each, unpacked"
    )
    too_long: TooLong = Field("error", description="what becomes of a document longer than a row or the context")
    evaluation: EvaluationSection | None = None
    evaluation_fraction: float | None = Field(
        None, gt=0, lt=1, description="share of the documents to hold out for evaluation"
    )
    # Not part of what is trained: a run may resume with its cache elsewhere.
    cache_dir: str | None = Field(None, exclude=True, description="where tokenised documents are kept")

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
        if self.streaming and self.row_length is None:
            raise ValueError("streaming needs a row_length to pack to")
        if self.streaming and self.evaluation_fraction is not None:
            raise ValueError("evaluation_fraction needs streaming: false; name an evaluation source or split instead")
        return self

    @property
    def sources(self) -> tuple[SourceSection, ...]:
        """Return the sources of the mixture, or the only one."""
        if self.mixture is not None:
            return self.mixture
        given = {name: getattr(self, name) for name in _Texts.model_fields}
        return (SourceSection(source=self.source or "", seed=self.seed, **given),)

    @property
    def evaluation_texts(self) -> "DataSection | None":
        """Return the section of the texts to evaluate on, if there are separate ones."""
        if self.evaluation is None:
            return None
        given = {name: getattr(self.evaluation, name) for name in self.evaluation.model_fields_set}
        if self.mixture is not None and self.evaluation.source is None:
            others = tuple(source.model_copy(update={"documents": None} | given) for source in self.mixture)
            return self.model_copy(update={"mixture": others, "evaluation": None, "streaming": False})
        alone = {"mixture": None, "evaluation": None, "streaming": False}
        # Where evaluation names columns, none is inherited: they may name another shape.
        if any(name.endswith("_column") for name in given):
            alone |= {name: None for name in _Texts.model_fields if name.endswith("_column")}
        return self.model_copy(update=alone | {"documents": None} | given)
