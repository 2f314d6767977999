"""Whatever a secret is, and wherever it stands, no part of it is recorded; what is no secret stays as it is."""

from __future__ import annotations

import shlex

from hypothesis import example, given
from hypothesis import strategies as st

from pytest_ddpscale.util.masking import MASK, masked_arguments, masked_environment, masked_text
from tests.rows import rows

MARK = "S3CR3T"  # begins and ends every secret of these tests
SECRET = st.text(max_size=12).map(lambda middle: f"{MARK}{middle}{MARK}")
IN_URL = st.text(st.characters(codec="utf-8", exclude_characters="/ \t\r\n", exclude_categories=["Z", "C"]), max_size=8)
ENDING = st.sampled_from(
    ["TOKEN", "SECRET", "PASSWORD", "KEY", "CREDENTIALS", "PASS", "SSHPASS", "PASSPHRASE", "PW", "AUTH", "PAT"]
)
PREFIX = st.from_regex(r"([A-Z][A-Z0-9]{0,6}_){0,2}", fullmatch=True)
NAME = st.builds(lambda prefix, ending, lower: (prefix + ending).lower() if lower else prefix + ending,
                 PREFIX, ENDING, st.booleans())  # fmt: skip
HARMLESS = st.lists(
    st.sampled_from(
        ["pytest", "--gpu-sku=b200", "--partition=gpu", "--exclusive", "-k", "a or b", "--ddp-slurm-args=-p gpu -A ops",
         "--ddp-container=docker://host:5000/torch@sha256:12", "--ddp-pass-env=SITE_TOKEN,X_*", "tests/test_x.py::t[a]"]
    ),
    max_size=4,
)  # fmt: skip


def as_option(name: str) -> str:
    return "--" + name.lower().replace("_", "-")


SPOKEN = st.one_of(
    st.builds(lambda name, secret: [f"{name}={secret}"], NAME, SECRET),
    st.builds(lambda name, secret: [f"{as_option(name)}={secret}"], NAME, SECRET),
    st.builds(lambda name, secret: [as_option(name), secret], NAME, SECRET),
    st.builds(lambda name, secret: [f"--comment={name}={secret}"], NAME, SECRET),
    st.builds(lambda secret: ["sshpass", "-p", secret], SECRET),
    st.builds(lambda secret: ["Authorization:", "Bearer", secret], SECRET),
    st.builds(lambda user, middle: [f"--index=https://{user}:{MARK}{middle}{MARK}@host/x"], IN_URL, IN_URL),
)


@given(name=NAME, secret=st.text())
def test_a_variable_named_like_a_secret_keeps_only_its_name(name: str, secret: str) -> None:
    assert masked_environment({name: secret}) == {name: MASK}


def test_other_variables_stay_as_they_are_but_for_a_login() -> None:
    others = {
        "NCCL_DEBUG": "INFO", "TOKENIZERS_PARALLELISM": "false", "CUDA_CACHE_PATH": "/tmp/a b", "OMP_PLACES": "",
        "NCCL_IB_PKEY": "1", "UCX_IB_PKEY": "0x7fff",
    }  # fmt: skip
    assert masked_environment(others) == others
    assert [masked_text(f"{name}={value}") for name, value in others.items()] == [f"{a}={b}" for a, b in others.items()]
    proxy = masked_environment({"UCX_PROXY": "http://ann:pw@proxy:8080/x"})
    assert proxy == {"UCX_PROXY": f"http://{MASK}@proxy:8080/x"}


@given(before=HARMLESS, spoken=SPOKEN, after=HARMLESS)
@example(before=[], spoken=["--password", f"{MARK} {MARK}"], after=[])
def test_arguments_lose_the_secret_and_nothing_else(before: list[str], spoken: list[str], after: list[str]) -> None:
    masked = masked_arguments([*before, *spoken, *after])
    assert MARK not in " ".join(masked)
    assert masked[: len(before)] == before
    assert masked[len(before) + len(spoken) :] == after
    assert masked_arguments(masked) == masked


@given(before=HARMLESS, spoken=SPOKEN, after=HARMLESS)
def test_a_command_line_inside_an_argument_or_a_message_loses_it_too(
    before: list[str], spoken: list[str], after: list[str]
) -> None:
    inner = shlex.join([*before, *spoken, *after])
    for arguments in ([f"--ddp-slurm-args=--mem=1 {inner}"], ["--ddp-slurm-args", f"--mem=1 {inner}"]):
        assert MARK not in " ".join(masked_arguments(arguments))
    assert MARK not in masked_text(f"srun: error: {inner} was refused")


@given(st.text())
def test_text_without_a_secret_stays_as_it_is(text: str) -> None:
    harmless = text.replace("=", "").replace("-", "").replace("@", "")
    assert masked_text(harmless) == harmless


@rows(
    ("argument", "expected"),
    [
        ("--ddp-slurm-args=--password hunter2 --partition=gpu", f"--ddp-slurm-args=--password {MASK} --partition=gpu"),
        (
            "--ddp-slurm-args=-N 2 --comment='token=a b' -p gpu",
            f"--ddp-slurm-args=-N 2 --comment='token={MASK}' -p gpu",
        ),
        ("--export=ALL,API_TOKEN=abc", f"--export=ALL,API_TOKEN={MASK}"),
        ("docker://ann:pw@host/torch:2", f"docker://{MASK}@host/torch:2"),
        ("--password=-x y", f"--password={MASK}"),
        ("--ddp-exec=SSHPASS=abc ssh {host}", f"--ddp-exec=SSHPASS={MASK}"),
        ("--ddp-exec=sshpass -p abc ssh {host}", f"--ddp-exec=sshpass -p {MASK} ssh {{host}}"),
        ("--header=Authorization: Bearer abc", f"--header=Authorization: {MASK} {MASK}"),
        (
            "--ddp-exec=curl -H 'Authorization: Bearer abc' {host}",
            f"--ddp-exec=curl -H 'Authorization: {MASK} {MASK}' {{host}}",
        ),
        (
            "--ddp-exec=bash -c 'sshpass -v -p abc ssh {host}'",
            f"--ddp-exec=bash -c 'sshpass -v -p {MASK} ssh {{host}}'",
        ),
        ("--ddp-exec=curl -u ann:abc {host}", f"--ddp-exec=curl -u {MASK} {{host}}"),
        ("--user=ann:abc", f"--user=ann:{MASK}"),
        ("--ddp-exec=docker exec -u 1000:1000 {host}", "--ddp-exec=docker exec -u 1000:1000 {host}"),
        ("--user=1000:1000", "--user=1000:1000"),
        ("-k bearer of Basic news", "-k bearer of Basic news"),
        ("-phunter2", "-phunter2"),
        ("--ddp-slurm-args=-u ann", "--ddp-slurm-args=-u ann"),
    ],
)
def test_the_rest_of_an_argument_stays_readable(argument: str, expected: str) -> None:
    assert masked_arguments([argument]) == [expected]
