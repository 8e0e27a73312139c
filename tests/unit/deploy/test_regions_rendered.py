"""regions.toml and what is rendered from it: every wrong file gets one line that says what to write instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from deploy.terraform.render import REGIONS_MAX, RENDERED, RegionsRefused, follows, main, parse, render

ROOT: Final = Path(__file__).resolve().parents[3] / "deploy/terraform"
HEAD: Final = 'mesh = "shop"\nglobal_region = "eu-west-1"\n'
ONE: Final = '[[regions]]\nname = "eu-west-1"\nnumber = 1\ncidr = "10.10.0.0/16"\n'
TWO: Final = '[[regions]]\nname = "us-east-1"\nnumber = 2\ncidr = "10.20.0.0/16"\n'

REFUSED: Final = {
    "no table": (HEAD, "at least one [[regions]] table"),
    "no mesh": ('global_region = "eu-west-1"\n' + ONE, "mesh: write 2 to 20 of"),
    "a mesh that no bucket may be called": (HEAD.replace("shop", "Shop") + ONE, 'such as mesh = "shop"'),
    "no region for what is shared": ('mesh = "shop"\n' + ONE, "global_region: None is no region of AWS"),
    "an unknown region": (HEAD + ONE.replace("eu-west-1", "eu-wset-1"), "(did you mean eu-west-1?)"),
    "an unknown key": (HEAD + ONE + "broker = 3\n", "'broker' is no key (did you mean brokers?)"),
    "an even number of brokers": (HEAD + ONE + "brokers = 4\n", "write an odd number, such as 3 or 5"),
    "too many brokers": (HEAD + ONE + "brokers = 11\n", "brokers: write a whole number, 1 to 9, not 11"),
    "no number": (HEAD + ONE.replace("number = 1\n", ""), "number: write a whole number, 1 to 32767, not None"),
    "truth as a number": (HEAD + ONE + "gateways = true\n", "gateways: write a whole number, 1 to 9, not True"),
    "a network with host bits": (HEAD + ONE.replace("10.10.0.0", "10.10.1.0"), "write a network such as 10.40.0.0/16"),
    "a small network": (HEAD + ONE.replace("/16", "/24"), "write a network of /16 to /20"),
    "a public network": (HEAD + ONE.replace("10.10.0.0", "8.8.0.0"), "8.8.0.0/16 is not private"),
    "networks that overlap": (
        HEAD + ONE + TWO.replace("10.20.0.0/16", "10.10.128.0/20"),
        "eu-west-1 (10.10.0.0/16) and us-east-1 (10.10.128.0/20) overlap; give us-east-1 10.20.0.0/16",
    ),
    "one number twice": (HEAD + ONE + TWO.replace("= 2", "= 1"), "have number 1; give us-east-1 2"),
    "one region twice": (HEAD + ONE + TWO.replace("us-east-1", "eu-west-1"), "eu-west-1 has two tables"),
    "a state that is none": (HEAD + ONE + 'state = "gone"\n', 'write "active" or "retired"'),
    "nothing but retired regions": (HEAD + ONE + 'state = "retired"\n', "every region is retired"),
    "two zones": (HEAD + ONE + 'zones = ["a", "b"]\n', "write the letters of three zones"),
    "an image that is none": (HEAD + ONE + 'image = "debian"\n', "write an AMI such as"),
    "no TOML": ("mesh = ", "it is no TOML"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_wrong_file_is_refused_in_one_line_that_says_what_to_write(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, said = REFUSED[what]
    file = tmp_path / "regions.toml"
    file.write_text(text)
    assert main(["--regions", str(file), "--out", str(tmp_path)]) == 1
    line = capsys.readouterr().err
    assert line.startswith("regions.toml: ") and line.count("\n") == 1 and said in line
    assert not (tmp_path / RENDERED).exists()


def test_what_is_committed_is_what_regions_toml_says() -> None:
    assert main(["--check"]) == 0
    assert (ROOT / RENDERED).read_text() == json.dumps(
        render(parse((ROOT / "regions.toml").read_text())), indent=2
    ) + "\n"


def test_each_pair_of_active_regions_is_joined_once_and_a_retired_one_keeps_its_provider() -> None:
    third = TWO.replace("us-east-1", "sa-east-1").replace("2", "3") + 'state = "retired"\n'
    rendered = render(parse(HEAD + ONE + TWO + third))
    assert set(rendered["module"]) == {"eu_west_1", "us_east_1", "eu_west_1_us_east_1"}
    assert [row.get("alias") for row in rendered["provider"]["aws"]] == [None, "eu_west_1", "us_east_1", "sa_east_1"]
    assert set(rendered["locals"]["made"]) == {"eu-west-1", "us-east-1"}


def test_six_regions_have_fifteen_peerings_and_eleven_are_too_many() -> None:
    names = (
        "eu-west-1 eu-west-2 eu-west-3 us-east-1 us-east-2 us-west-1 us-west-2 sa-east-1 af-south-1 ca-west-1 ap-east-1"
    )

    def text(count: int) -> str:
        return HEAD + "".join(
            f'[[regions]]\nname = "{name}"\nnumber = {n}\ncidr = "10.{n}.0.0/16"\n'
            for n, name in enumerate(names.split()[:count], 1)
        )

    modules = render(parse(text(6)))["module"].values()
    assert [module["source"] for module in modules].count("./modules/peering") == 15
    with pytest.raises(RegionsRefused, match=f"11 active regions: at most {REGIONS_MAX}"):
        parse(text(11))


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (HEAD + ONE, 'us-east-1 was active: write state = "retired", render and apply'),
        (HEAD + ONE + TWO.replace("= 2", "= 7"), "us-east-1: number was 2 and never changes"),
        (HEAD + ONE + TWO.replace("10.20", "10.90"), "us-east-1: cidr was 10.20.0.0/16 and never changes"),
        (HEAD.replace("shop", "store") + ONE + TWO, 'mesh was "shop" and never changes'),
        (HEAD.replace("eu-west-1", "us-east-1") + ONE + TWO, 'global_region was "eu-west-1" and never changes'),
    ],
)
def test_what_would_destroy_or_rename_what_was_applied_is_refused(now: str, said: str) -> None:
    with pytest.raises(RegionsRefused) as refused:
        follows(parse(now), render(parse(HEAD + ONE + TWO)))
    assert said in str(refused.value)


def test_a_region_leaves_in_two_steps_and_each_is_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "regions.toml"
    words = ["--regions", str(file), "--out", str(tmp_path)]
    for text in (HEAD + ONE + TWO, HEAD + ONE + TWO + 'state = "retired"\n', HEAD + ONE):
        file.write_text(text)
        if (tmp_path / RENDERED).exists():
            assert main([*words, "--check"]) == 1
            assert "is not what it says. Run render.py" in capsys.readouterr().err
        assert main(words) == 0 and main([*words, "--check"]) == 0
        capsys.readouterr()
    file.write_text(HEAD.replace("shop", "store") + ONE)
    assert main(words) == 1 and "render.py --anew" in capsys.readouterr().err
    assert main([*words, "--anew"]) == 0
