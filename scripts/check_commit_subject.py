"""Check the subject line of a commit message; `make test` installs this as the commit-msg hook.

Usage: check_commit_subject.py FILE, where FILE contains the message. Exits with 1 and says why if
the subject is too long or does not begin with an imperative verb.
"""

import re
import sys
from pathlib import Path

MOST_CHARACTERS = 72

GENERATED_BY_GIT = re.compile(
    r"Merge (?:branch(?:es)?|commits?|tags?|remote-tracking branch(?:es)?|pull request) "
    r"|Revert \"|(?:fixup|squash|amend)! "
)

NOT_IMPERATIVE = re.compile(r"\w+(?:ed|ing|[^s]s)")
"""A past form, an -ing form or a third person: "Added", "Adding", "Adds"."""

IRREGULAR_PAST = {
    *("Began", "Broke", "Brought", "Built", "Came", "Caught", "Chose", "Did", "Drew"),
    *("Drove", "Fell", "Felt", "Gave", "Got", "Grew", "Had", "Held", "Hid", "Kept", "Knew", "Led"),
    *("Left", "Lost", "Made", "Meant", "Met", "Ran", "Rewrote", "Said", "Sent", "Shrank", "Spent"),
    *("Spoke", "Stood", "Taught", "Thought", "Threw", "Told", "Took", "Understood", "Was", "Went"),
    *("Were", "Withdrew", "Won", "Wrote"),
}
"""Past forms that are never imperative: "Bound", "Found" and "Read", for instance, may be."""

NOT_VERBS = {
    *("A", "An", "Each", "Every", "He", "I", "It", "Its", "My", "Our", "She", "That", "The"),
    *("Their", "There", "These", "They", "This", "Those", "We", "You", "Your"),
}
"""Articles and pronouns: the subject is then a sentence about the code or its author."""

IMPERATIVE = {
    *("Bias", "Bring", "Canvas", "Embed", "Exceed", "Feed", "Focus", "Need", "Proceed", "Ring"),
    *("Seed", "Shed", "Shred", "Speed", "Spring", "String", "Succeed", "Swing"),
}
"""Imperative verbs that end as the forms above do."""


def problems(message: str) -> list[str]:
    """Return what is wrong with the subject of `message`, a sentence for each problem."""
    lines = [line for line in message.splitlines() if not line.startswith("#")]
    subject = lines[0].rstrip() if lines else ""
    if not subject:
        return ["The subject is empty: say in one line what changed."]
    if GENERATED_BY_GIT.match(subject):
        return []
    found: list[str] = []
    if len(subject) > MOST_CHARACTERS:
        found.append(f"The subject has {len(subject)} characters; use at most {MOST_CHARACTERS}.")
    if subject.endswith("."):
        found.append("The subject ends with a period; leave it out.")
    first = subject.split()[0].rstrip(":,;")
    if not first[:1].isupper():
        found.append(f"The subject begins with {first!r}; begin with a capital letter.")
    inflected = NOT_IMPERATIVE.fullmatch(first) and first not in IMPERATIVE
    if inflected or first in IRREGULAR_PAST or first in NOT_VERBS:
        found.append(f"The subject begins with {first!r}; use the imperative, as in 'Add'.")
    if re.search(r"\bafter review\b", subject, re.IGNORECASE):
        found.append("The subject says when it was changed; say what changed.")
    if len(lines) > 1 and lines[1].strip():
        found.append("The second line is not empty; separate the subject from the text.")
    return found


def main() -> int:
    """Check the message in the file named on the command line; return the exit status."""
    message = Path(sys.argv[1]).read_text(encoding="utf-8")
    found = problems(message)
    for problem in found:
        sys.stderr.write(f"{problem}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
