"""String formats of JSON schemas as patterns: what matches one of these is valid, though not every valid text matches.

A format is listed only if a pattern can be that strict: dates know leap years, times have no leap second, host names
have no label that begins or ends with a hyphen.
"""

from __future__ import annotations

from collections.abc import Mapping

_LEAP_YEAR = (
    "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"  # by 4, of centuries by 400
)
_YEAR = "(?:[1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DATE = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_TIME = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_OCTET = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_GROUP = "[0-9A-Fa-f]{1,4}"
_IPV6 = "|".join(
    [f"(?:{_GROUP}:){{7}}{_GROUP}", "::"]
    + [
        f"(?:{_GROUP}:){{{left}}}:{_GROUP}(?::{_GROUP}){{0,{6 - left}}}" if left else f":(?::{_GROUP}){{1,7}}"
        for left in range(7)
    ]
    + [f"(?:{_GROUP}:){{1,7}}:"]
)
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(?:\.{_LABEL}){{0,6}}"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"
_DAYS_AND_TIME = "T(?:[0-9]{1,9}H(?:[0-9]{1,9}M(?:[0-9]{1,9}S)?)?|[0-9]{1,9}M(?:[0-9]{1,9}S)?|[0-9]{1,9}S)"
_PART = "(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_SEGMENTS = f"(?:/{_PART}*)*"
_URI = rf"[A-Za-z][A-Za-z0-9+.-]*://{_HOST}(?::[0-9]{{1,4}})?{_SEGMENTS}(?:\?(?:{_PART}|[/?])*)?(?:#(?:{_PART}|[/?])*)?"

FORMATS: Mapping[str, str] = {
    "date": f"^(?:{_DATE})$",
    "time": f"^{_TIME}$",
    "date-time": f"^(?:{_DATE})T{_TIME}$",
    "duration": "^P(?:[0-9]{1,9}W|"
    f"(?:[0-9]{{1,9}}Y(?:[0-9]{{1,9}}M(?:[0-9]{{1,9}}D)?)?|[0-9]{{1,9}}M(?:[0-9]{{1,9}}D)?|[0-9]{{1,9}}D)"
    f"(?:{_DAYS_AND_TIME})?|{_DAYS_AND_TIME})$",
    "email": rf"^{_ATOM}(?:\.{_ATOM}){{0,2}}@{_HOST}$",
    "hostname": f"^{_HOST}$",
    "ipv4": f"^{_IPV4}$",
    "ipv6": f"^(?:{_IPV6})$",
    "uri": f"^{_URI}$",
    "uuid": "^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$",
}
"""Format -> anchored pattern."""
