"""Many requests at once: all answered, a few at a time, however many there are."""

from collections.abc import Iterator

from running import alone
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.engine.offline import answered
from setblock.engine.request import Request
from setblock.model.sbd_model import SBDModel


def test_answers_all_and_takes_no_more_than_it_needs(sbd: SBDModel, texts: list[list[int]]) -> None:
    select, done = [], {}

    def requests() -> Iterator[Request]:
        for n in range(20):
            select.append(n)
            settings = DecodingSettings(method="sbd", max_new_tokens=1 + n % 7, sampler=EntropyBounded(4.0))
            yield Request(str(n), texts[n % 3], settings)

    engine = Engine(sbd, EngineLimits(max_num_seqs=3))
    for name, generation in answered(engine, requests()):
        assert len(select) - len(done) <= 3 + 1
        done[name] = generation
    assert list(done) != sorted(done, key=int)  # as they are finished, the short ones first
    assert done.keys() == {str(n) for n in range(20)}
    for request in requests():
        assert done[request.id].token_ids == alone(sbd, request).token_ids
