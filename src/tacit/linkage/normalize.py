"""One way to write names, addresses, dates and codes, and the sound of a name.

    text    Unicode NFKD without accents, case folding, letters and digits only: "Müller-Lüdenscheidt" is
            "mullerludenscheidt". Spaces go, too: "mc donald" and "McDonald" are one name. Letters that are
            not a letter with an accent are written as is usual without them: "Łukasz" is "lukasz"
    dates   YYYYMMDD, YYYY-MM-DD, YYYY/MM/DD, D.M.YYYY and D/M/YYYY; anything else is a missing value
    sound   Soundex: Russell and Odell, US patents 1261167 (1918) and 1435663 (1922)

A cell that is empty, or a null token of `data.identifiers`, is a missing value: "".
"""

from __future__ import annotations

import re
import unicodedata

from ..data.identifiers import NULL_IDS, normal

_NOT_WORD = re.compile(r"[\W_]+")
_DATE = re.compile(
    r"(?P<y>\d{4})(?P<m>\d{2})(?P<d>\d{2})"
    r"|(?P<y2>\d{4})[-/.](?P<m2>\d{1,2})[-/.](?P<d2>\d{1,2})([T ].*)?"
    r"|(?P<d3>\d{1,2})[-/.](?P<m3>\d{1,2})[-/.](?P<y3>\d{4})",
    re.ASCII,
)
# of Latin letters that Unicode does not decompose
_PLAIN = str.maketrans(
    {"ł": "l", "ø": "o", "đ": "d", "ð": "d", "ħ": "h", "ŧ": "t", "ı": "i", "æ": "ae", "œ": "oe", "þ": "th"}
)
_SOUNDS = {c: k for k, group in enumerate(("bfpv", "cgjkqsxz", "dt", "l", "mn", "r"), 1) for c in group}
SOUND = 4  # characters of a sound


def normalize_text(text: str) -> str:
    """Return the letters and digits of a text, without case and accents; "" if it is missing."""
    if normal(text) in NULL_IDS:
        return ""
    if text.isascii():
        return _NOT_WORD.sub("", text.lower())
    folded = unicodedata.normalize("NFKD", unicodedata.normalize("NFKC", text).casefold())
    plain = "".join(c for c in folded if not unicodedata.combining(c)).translate(_PLAIN)
    return _NOT_WORD.sub("", plain)


def normalize_date(text: str) -> str:
    """Return a date as YYYYMMDD; "" if it is missing or in no known form.

    The day and the month are not checked: a date with month 31 is one whose day and month were swapped.
    """
    found = _DATE.fullmatch(text.strip())
    if found is None:
        return ""
    parts = found.groupdict()
    y, m, d = ("".join(parts[key + n] or "" for n in ("", "2", "3")) for key in "ymd")
    return f"{y}{int(m):02d}{int(d):02d}"


def to_sound(name: str) -> str:
    """Return the Soundex code of a normalized name; "" if it has no letter from a to z."""
    letters = [c for c in name if "a" <= c <= "z"]
    if not letters:
        return ""
    code, last = letters[0].upper(), _SOUNDS.get(letters[0], 0)
    for c in letters[1:]:
        sound = _SOUNDS.get(c, 0)
        if sound and sound != last:
            code += str(sound)
        if c not in "hw":  # they do not separate two letters of the same sound
            last = sound
    return code[:SOUND].ljust(SOUND, "0")
