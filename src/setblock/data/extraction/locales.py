"""Locales: how each writes dates, times, amounts and telephone numbers.

Knows forms. Knows nothing of values, nor of who draws among the forms.
"""

from dataclasses import dataclass

LONG = ("{d} {month} {y}", "{weekday}, {d} {month} {y}", "{d} {mon} {y}")
ENGLISH = (*LONG, "{nth} of {month} {y}", "{d}-{mon}-{y}", "{weekday} {nth} {month} {y}", "{y}-{mm}-{dd}")
AMERICAN = (
    "{month} {d}, {y}",
    "{weekday}, {month} {d}, {y}",
    "{mon} {d}, {y}",
    "{month} {nth}, {y}",
    "{mm}/{dd}/{y}",
    "{mm}/{dd}/{yy}",
    "{y}-{mm}-{dd}",
)
DOTTED = (*LONG, "{dd}.{mm}.{y}", "{d}.{m}.{y}", "{d}. {month} {y}", "{weekday}, {dd}.{mm}.{y}")
SLASHED = (*LONG, "{dd}/{mm}/{y}", "{dd}/{mm}/{yy}", "{nth} of {month} {y}", "{dd}/{mm}/{y}")
HYPHENED = (*LONG, "{dd}-{mm}-{y}", "{nth} of {month} {y}", "{d}-{m}-{y}")
ISO = (*LONG, "{y}-{mm}-{dd}", "{y}-{mm}-{dd}", "{nth} of {month} {y}")

TWENTY_FOUR = ("{H}:{M}", "{HH}:{M}")
DOTTED_HOURS = (*TWENTY_FOUR, "{H}.{M}", "{HH}.{M} h")
HALF_DAYS = ("{h}:{M} {pm}", "{h}:{M}{pm}", "{h}:{M} {PM}", "{h}.{M} {p.m.}", "{HH}:{M}")


@dataclass(frozen=True)
class Locale:
    """How people of one place write in an English message.

    Attributes:
        currency: its ISO code.
        amounts: forms of an amount, `{n}` being the number.
        point: what stands before the cents.
        group: what stands between thousands.
        dates: forms of a date.
        times: forms of a time of day.
        phones: telephone numbers; each `#` is a digit.
        domain: how web addresses end.
    """

    currency: str
    amounts: tuple[str, ...]
    point: str
    group: str
    dates: tuple[str, ...]
    times: tuple[str, ...]
    phones: tuple[str, ...]
    domain: str


def _amounts(symbol: str, code: str, *, symbol_last: bool) -> tuple[str, ...]:
    return ("{n} " + symbol if symbol_last else symbol + "{n}", f"{code} {{n}}", f"{{n}} {code}", f"{symbol} {{n}}")


_EUROS_FIRST, _EUROS_LAST = _amounts("€", "EUR", symbol_last=False), _amounts("€", "EUR", symbol_last=True)

LOCALES: dict[str, Locale] = {
    "en_US": Locale(
        "USD",
        ("${n}", "${n}", "USD {n}", "{n} USD"),
        ".",
        ",",
        AMERICAN,
        HALF_DAYS,
        ("(###) ###-####", "###-###-####", "+1 ### ### ####"),
        "com",
    ),
    "en_GB": Locale(
        "GBP",
        ("£{n}", "£{n}", "GBP {n}", "{n} GBP"),
        ".",
        ",",
        (*ENGLISH, *SLASHED),
        HALF_DAYS,
        ("020 7### ####", "+44 7### ######", "01### ######"),
        "co.uk",
    ),
    "en_IE": Locale(
        "EUR",
        _EUROS_FIRST,
        ".",
        ",",
        (*ENGLISH, *SLASHED),
        (*HALF_DAYS, *TWENTY_FOUR),
        ("+353 1 ### ####", "08# ### ####"),
        "ie",
    ),
    "de_DE": Locale(
        "EUR", _EUROS_LAST, ",", ".", DOTTED, DOTTED_HOURS, ("+49 30 #######", "0171 #######", "089/######"), "de"
    ),
    "de_CH": Locale(
        "CHF",
        ("CHF {n}", "{n} CHF", "Fr. {n}"),
        ".",
        "'",
        DOTTED,
        DOTTED_HOURS,
        ("+41 44 ### ## ##", "079 ### ## ##"),
        "ch",
    ),
    "fr_FR": Locale(
        "EUR",
        _EUROS_LAST,
        ",",
        " ",
        SLASHED,
        (*TWENTY_FOUR, "{HH}h{M}", "{HH} h {M}"),
        ("+33 6 ## ## ## ##", "01 ## ## ## ##"),
        "fr",
    ),
    "it_IT": Locale("EUR", _EUROS_FIRST, ",", ".", SLASHED, DOTTED_HOURS, ("+39 06 #######", "34# #######"), "it"),
    "es_ES": Locale("EUR", _EUROS_LAST, ",", ".", SLASHED, TWENTY_FOUR, ("+34 6## ### ###", "91 ### ## ##"), "es"),
    "nl_NL": Locale("EUR", _EUROS_FIRST, ",", ".", HYPHENED, DOTTED_HOURS, ("+31 6 ########", "020-#######"), "nl"),
    "pl_PL": Locale(
        "PLN",
        ("{n} zł", "{n} PLN", "PLN {n}"),
        ",",
        " ",
        DOTTED,
        TWENTY_FOUR,
        ("+48 ### ### ###", "22 ### ## ##"),
        "pl",
    ),
    "sv_SE": Locale(
        "SEK",
        ("{n} SEK", "SEK {n}"),
        ",",
        " ",
        ISO,
        (*TWENTY_FOUR, "{HH}.{M}"),
        ("+46 70 ### ## ##", "08-### ## ##"),
        "se",
    ),
    "pt_BR": Locale(
        "BRL",
        ("R$ {n}", "R${n}", "BRL {n}", "{n} BRL"),
        ",",
        ".",
        SLASHED,
        (*TWENTY_FOUR, "{HH}h{M}"),
        ("+55 11 9####-####", "(21) ####-####"),
        "com.br",
    ),
}
"""By Faker's names. Messages themselves are in English."""

TEST_LOCALE = "pt_BR"
"""It is in no message of another split."""
