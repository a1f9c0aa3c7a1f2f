"""The engine that a model keeps from one call to the next, which then replays the passes that the first one captured."""

from dataclasses import dataclass, replace

from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.locks import lock_of
from setblock.model.protocol.runtime import LanguageModel, next_power_of_two

_NAME = "_setblock_engine"


@dataclass
class KeptEngine:
    """The idle engine of a model, if there is one. A copy of it, with a copy of the model, is empty."""

    engine: Engine | None = None

    def __reduce__(self) -> tuple[type["KeptEngine"], tuple[()]]:
        return KeptEngine, ()


def take_engine(model: LanguageModel, limits: EngineLimits) -> Engine:
    """Return an engine that is used as a new one with these limits: the one that the model keeps, or a new one if that does
    not fit. A new one is at least as large as the other. Until `keep_engine` is called, the model keeps none."""
    with lock_of(model):
        place: KeptEngine = vars(model).setdefault(_NAME, KeptEngine())
        engine, place.engine = place.engine, None
    if engine is None or not engine.fits(model, limits):
        size = replace(limits, max_num_seqs=next_power_of_two(limits.max_num_seqs))
        if engine is not None:
            rows, tokens = max(size.max_num_seqs, engine.size.max_num_seqs), max(size.kv_tokens, engine.size.kv_tokens)
            size = replace(size, max_num_seqs=rows, kv_tokens=tokens)
        del engine  # and with it its cache, before there is another one
        engine = Engine(model, size)
    engine.restart(limits)
    return engine


def keep_engine(model: LanguageModel, engine: Engine) -> None:
    """Let a model keep an idle engine in place of any other."""
    with lock_of(model):
        vars(model)[_NAME].engine = engine
