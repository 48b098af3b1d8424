"""A signed verdict verifies, and nothing else does."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys

import msgspec
import pytest
import typer
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from bottleneck_lab.commands.verify import command as verify_command
from bottleneck_lab.errors import LabError, MachineError, UsageError
from bottleneck_lab.grading import attest
from bottleneck_lab.grading.verdict import Binding, CriterionResult, Outcome, Prediction, Verdict

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key()
VERDICT = Verdict(
    outcome=Outcome.PASS,
    reason=None,
    summary="All 2 criteria hold. Quick “enough”.",
    lab="idle-gpu",
    lab_hash="a" * 64,
    submission_hash="b" * 64,
    device="virtual",
    criteria=[
        CriterionResult("right-answers", "correctness", True, "Right."),
        CriterionResult(
            "speedup",
            "target",
            True,
            "Fast.",
            1.5,
            1.2345678901234567,
            1.7,
            1.3,
            unit="x",
            samples=12,
        ),
    ],
    environment={"cpu": "µ-core"},
    isolation={},
    started_at="2026-11-21T09:00:00Z",
    duration_s=33.0,
    prediction=Prediction(2.0, None),
    measurement={"noise": 1e-9, "looks": [12, 16], "nested": {"ok": True}},
)
SIGNED = attest.sign(VERDICT, KEY)


def encode(verdict):
    return msgspec.json.encode(verdict)


def verify(data):
    return attest.verify_bytes(
        data if isinstance(data, bytes) else json.dumps(data).encode(), PUBLIC
    )


def fields(verdict=SIGNED):
    return json.loads(encode(verdict))


def test_a_signed_verdict_verifies_and_says_by_whom():
    result = verify(encode(SIGNED))
    assert result.ok
    assert result.verdict == SIGNED
    assert (
        result.sentence
        == f"Verified: PASS for idle-gpu, signed with key {attest.fingerprint(PUBLIC)}."
    )
    assert SIGNED.attestation == "verified"


def test_signing_changes_nothing_else():
    bare = msgspec.structs.replace(SIGNED, attestation="self-attested", signature=None)
    assert bare == VERDICT


@pytest.mark.parametrize("outcome", ["FAIL", "INCONCLUSIVE", "ERROR"])
def test_a_signature_is_not_a_pass(outcome):
    signed = attest.sign(msgspec.structs.replace(VERDICT, outcome=Outcome(outcome)), KEY)
    result = verify(encode(signed))
    assert result.ok
    assert outcome in result.sentence


def test_layout_and_order_of_keys_do_not_matter():
    shuffled = dict(reversed(fields().items()))
    shuffled["measurement"] = dict(reversed(shuffled["measurement"].items()))
    assert verify(json.dumps(shuffled, indent=4).encode()).ok
    assert verify(json.dumps(shuffled, ensure_ascii=False).encode()).ok


def test_no_changed_byte_is_accepted_unless_it_means_the_same():
    data = encode(SIGNED)
    for at in range(len(data)):
        for value in (data[at] ^ 1, ord("0")):
            changed = data[:at] + bytes([value]) + data[at + 1 :]
            result = verify(changed)
            assert not result.ok or result.verdict == SIGNED, changed[max(0, at - 20) : at + 20]


@given(st.data())
def test_no_changed_value_is_accepted(data):
    changed = fields()
    name = data.draw(st.sampled_from(sorted(changed)))
    scalars = (
        st.none()
        | st.booleans()
        | st.integers(-5, 5)
        | st.floats(allow_nan=False)
        | st.text(max_size=5)
    )
    value = data.draw(
        scalars
        | st.lists(scalars, max_size=2)
        | st.dictionaries(st.text(max_size=3), scalars, max_size=2)
    )
    if value != changed[name]:
        changed[name] = value
        assert not verify(changed).ok


@pytest.mark.parametrize("name", ["lab_hash", "submission_hash", "lab", "summary", "started_at"])
def test_hashes_and_names_are_inside_the_signature(name):
    result = verify(fields() | {name: "other"})
    assert not result.ok
    assert "was changed after" in result.sentence


def test_a_changed_criterion_is_noticed():
    changed = fields()
    changed["criteria"][1]["low"] = 1.2345678901234565
    assert "was changed after" in verify(changed).sentence
    changed = fields()
    changed["criteria"].reverse()
    assert not verify(changed).ok


def test_every_truncation_is_refused():
    data = encode(SIGNED)
    assert not any(verify(data[:length]).ok for length in range(len(data)))
    assert verify(data[:-1]).sentence.startswith("Not a verdict: it is not complete JSON")


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "complete JSON"),
        (b"[]", "Expected `object`"),
        (b"\xff\xfe", "UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"schema": 1}', "missing required field"),
        (b'{"schema": 1, "schema": 1}', "twice"),
        (encode(SIGNED).replace(b'"nested":{', b'"nested":{"ok":false,'), "twice"),
        (encode(SIGNED)[:-1] + b',"outcome":"PASS"}', "twice"),
        (encode(SIGNED)[:-1] + b',"extra":1}', "unknown field"),
        (
            encode(SIGNED).replace(b'"schema":1', b'"schema":2'),
            "its schema is 2, this version reads 1",
        ),
        (encode(SIGNED).replace(b"33.0", b"NaN"), "NaN is not JSON"),
        (encode(SIGNED).replace(b"33.0", b"1" + b"0" * 400), "out of range"),
        (encode(SIGNED).replace(b"33.0", b"9" * 5000), "limit"),
        (encode(SIGNED) + b"{}", "complete JSON"),
        (b" " * (attest.MAX_BYTES + 1), "larger than 16 MiB"),
    ],
)
def test_what_is_no_verdict_is_refused_with_the_reason(data, why):
    result = verify(data)
    assert not result.ok
    assert result.verdict is None
    assert why in result.sentence


def test_a_number_beyond_floats_is_no_verdict():
    result = verify(encode(SIGNED).replace(b"33.0", b"1e400"))
    assert (result.ok, result.verdict) == (False, None)


def test_self_attested_is_never_ok():
    result = verify(encode(VERDICT))
    assert not result.ok
    assert result.sentence.startswith("self-attested: no signature")
    forged = msgspec.structs.replace(SIGNED, attestation="self-attested")
    assert not verify(encode(forged)).ok


def test_verified_without_a_signature_is_not_ok():
    result = verify(encode(msgspec.structs.replace(SIGNED, signature=None)))
    assert not result.ok
    assert "has no signature" in result.sentence


def test_another_key_is_named():
    other = Ed25519PrivateKey.generate()
    result = verify(encode(attest.sign(VERDICT, other)))
    assert not result.ok
    assert attest.fingerprint(other.public_key()) in result.sentence


def test_a_signature_moved_to_another_verdict_or_name_is_refused():
    other = attest.sign(msgspec.structs.replace(VERDICT, summary="Another."), KEY)
    assert not verify(encode(msgspec.structs.replace(SIGNED, signature=other.signature))).ok
    stranger = attest.sign(VERDICT, Ed25519PrivateKey.generate())
    renamed = f"ed25519:{attest.fingerprint(PUBLIC)}:{stranger.signature.rpartition(':')[2]}"
    assert not verify(encode(msgspec.structs.replace(SIGNED, signature=renamed))).ok


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text[:-1],
        lambda text: text + "\n",
        lambda text: text[:-4],
        lambda text: text.replace("ed25519", "ED25519"),
        lambda text: text.rpartition(":")[2],
        lambda text: "",
        lambda text: "ed25519:é:é",
        lambda text: text[:-3] + chr(ord(text[-3]) + 1) + "==",
    ],
)
def test_a_signature_is_read_exactly_as_it_is_written(spoil):
    assert not verify(encode(msgspec.structs.replace(SIGNED, signature=spoil(SIGNED.signature)))).ok


def test_signatures_for_other_purposes_do_not_count():
    """The same bytes signed without our context, as another protocol might."""
    bare = KEY.sign(attest.canonical_bytes(SIGNED))
    forged = msgspec.structs.replace(SIGNED, signature=attest._write_signature(PUBLIC, bare))
    assert not verify(encode(forged)).ok


def test_canonical_bytes_are_sorted_compact_ascii_without_the_signature():
    data = attest.canonical_bytes(SIGNED)
    assert data.isascii()
    assert b'"signature"' not in data
    assert data.startswith(
        b'{"advice":[],"attestation":"verified","binding":null,"criteria":[{"direction":"at_least",'
    )
    assert b'"low":1.2345678901234567' in data


@given(
    st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(2**63), 2**64 - 1) | st.text()
)
def test_what_is_signed_survives_being_written_and_read(value):
    signed = attest.sign(msgspec.structs.replace(VERDICT, measurement={"value": value}), KEY)
    assert verify(json.dumps(msgspec.to_builtins(signed)).encode()).ok
    if not isinstance(value, str) or value.isprintable():
        assert verify(encode(signed)).ok


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_json_cannot_hold_is_not_signed(value):
    with pytest.raises(LabError, match="JSON"):
        attest.sign(msgspec.structs.replace(VERDICT, measurement={"value": value}), KEY)


def test_verify_file_reads_a_file_and_names_one_that_it_cannot(tmp_path):
    path = tmp_path / "verdict.json"
    path.write_bytes(encode(SIGNED))
    assert attest.verify_file(path, PUBLIC).ok
    for missing in (tmp_path / "none.json", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            attest.verify_file(missing, PUBLIC)


def test_a_generated_pair_signs_and_verifies(tmp_path):
    path = tmp_path / "runner.pem"
    public_path = attest.generate_key(path)
    assert (path.stat().st_mode & 0o777, public_path.stat().st_mode & 0o777) == (0o600, 0o644)
    assert path.read_bytes().startswith(b"-----BEGIN PRIVATE KEY-----")
    assert public_path.read_bytes().startswith(b"-----BEGIN PUBLIC KEY-----")
    signed = attest.sign(VERDICT, attest.load_private_key(path))
    assert attest.verify_bytes(encode(signed), attest.load_public_key(public_path)).ok


def test_a_private_key_is_closed_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        attest.generate_key(tmp_path / "open.pem")
        os.umask(0o777)
        attest.generate_key(tmp_path / "shut.pem")
    finally:
        os.umask(before)
    for name in ("open.pem", "shut.pem"):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        attest.load_private_key(tmp_path / name)


@pytest.mark.parametrize("existing", ["runner.pem", "runner.pem.pub"])
def test_a_key_is_never_overwritten(tmp_path, existing):
    (tmp_path / existing).write_text("precious")
    with pytest.raises(UsageError, match="already exists"):
        attest.generate_key(tmp_path / "runner.pem")
    assert (tmp_path / existing).read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == [existing]


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        attest.generate_key(tmp_path / "none" / "runner.pem")


def test_a_full_disk_leaves_no_half_key(tmp_path, monkeypatch):
    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MachineError, match="No space left"):
        attest.generate_key(tmp_path / "runner.pem")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o666])
def test_a_private_key_that_others_can_touch_is_refused(tmp_path, mode):
    path = tmp_path / "runner.pem"
    attest.generate_key(path)
    path.chmod(mode)
    with pytest.raises(UsageError, match="Others can") as caught:
        attest.load_private_key(path)
    assert "chmod 600" in caught.value.remedy


def test_a_link_a_folder_a_pipe_and_nothing_are_no_private_keys(tmp_path):
    attest.generate_key(tmp_path / "real.pem")
    (tmp_path / "link.pem").symlink_to("real.pem")
    os.mkfifo(tmp_path / "pipe.pem", 0o600)
    for name in ("link.pem", "pipe.pem", "none.pem", "."):
        with pytest.raises(UsageError, match=r"cannot be read|not a regular file"):
            attest.load_private_key(tmp_path / name)


def _pem(key, password=None):
    form = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, form)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"not a key", "not an unencrypted private key"),
        (_pem(KEY, b"secret"), "not an unencrypted private key"),
        (_pem(KEY)[:-40], "not an unencrypted private key"),
        (_pem(ec.generate_private_key(ec.SECP256R1())), "not an Ed25519 key"),
    ],
)
def test_other_private_keys_are_refused(tmp_path, content, why):
    path = tmp_path / "runner.pem"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(UsageError, match=why):
        attest.load_private_key(path)


def test_other_public_keys_are_refused(tmp_path):
    path = tmp_path / "runner.pub"
    with pytest.raises(UsageError, match="cannot be read"):
        attest.load_public_key(path)
    path.write_bytes(_pem(KEY))
    with pytest.raises(UsageError, match="not a public key"):
        attest.load_public_key(path)
    elliptic = ec.generate_private_key(ec.SECP256R1()).public_key()
    path.write_bytes(
        elliptic.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    with pytest.raises(UsageError, match="not an Ed25519 key"):
        attest.load_public_key(path)


def test_importing_the_layer_loads_no_torch():
    code = (
        "import sys, bottleneck_lab.grading.attest, bottleneck_lab.grading.criteria;"
        " print({'torch'} & set(sys.modules))"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.strip()
        == "set()"
    )


def test_a_field_that_is_left_out_is_noticed_even_if_it_holds_its_default():
    fields = json.loads(encode(SIGNED))
    for name in ("notes", "advice", "binding"):
        assert fields[name] in ([], None), name
        less = {key: value for key, value in fields.items() if key != name}
        assert "missing" in verify(json.dumps(less).encode()).sentence, name


def test_a_number_that_only_rounds_to_the_signed_one_is_noticed():
    assert verify(encode(SIGNED)).ok
    changed = encode(SIGNED).replace(b"1.2345678901234567", b"1.23456789012345671")
    assert changed != encode(SIGNED)
    assert not verify(changed).ok


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="not a regular file"):
        attest.verify_file(tmp_path / "pipe", PUBLIC)
    with pytest.raises(UsageError, match="not a regular file"):
        attest.load_public_key(tmp_path / "pipe")


@pytest.mark.parametrize(("learner", "theirs"), [(None, True), ("ada", True), ("grace", False)])
def test_lab_verify_says_whose_verdict_it_is(tmp_path, capsys, learner, theirs):
    bound = msgspec.structs.replace(VERDICT, binding=Binding("spring", "ada", "s-17", "n0nce"))
    (tmp_path / "verdict.json").write_bytes(encode(attest.sign(bound, KEY)))
    (tmp_path / "key.pub").write_bytes(
        PUBLIC.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    with contextlib.nullcontext() if theirs else pytest.raises(typer.Exit):
        verify_command(tmp_path / "verdict.json", tmp_path / "key.pub", learner)
    told = " ".join(capsys.readouterr().out.split())
    assert "For ada in cohort spring, submission s-17, nonce n0nce" in told
    assert ("the verdict is ada's, not grace's" in told) != theirs


def test_a_signed_fail_says_so():
    failed = attest.sign(
        msgspec.structs.replace(SIGNED, outcome=Outcome.FAIL, reason="wrong output"), KEY
    )
    assert "the outcome is FAIL" in verify(encode(failed)).sentence
