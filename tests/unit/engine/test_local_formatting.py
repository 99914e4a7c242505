"""A broker's data folder, prepared from what Kafka's own tool made once."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from relevo_engine.local.errors import LocalError
from relevo_engine.local.formatting import format_data, new_id
from relevo_engine.local.kafka import KafkaPlace, KafkaTools, class_archive, kafka_spec

TOOL = """#!/bin/sh
echo made >> {folder}/runs
settings=$(eval echo \\${{$#}})
data=$(sed -n 's/^log.dirs=//p' $settings)
mkdir -p $data/__cluster_metadata-0
echo features > $data/__cluster_metadata-0/0.checkpoint
chmod 440 $data/__cluster_metadata-0/0.checkpoint
printf 'version=1\\ncluster.id=theirs\\nnode.id=1\\ndirectory.id=first\\n' > $data/meta.properties
"""


def tools_in(folder: Path, script: str = TOOL) -> KafkaTools:
    """Kafka's libraries, and a `java` that stands for its tool."""
    java = folder / "java"
    java.write_text(script.format(folder=folder))
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    (folder / "kafka-1234").mkdir(exist_ok=True)
    return KafkaTools(str(java), folder / "kafka-1234", folder / "log4j2.properties")


def prepare(place: KafkaPlace, tools: KafkaTools, cluster_id: str) -> dict[str, str]:
    """What its small file says afterwards."""
    kafka_spec(place, [place], tools=tools, throw_away=True)
    format_data(place, cluster_id, tools)
    lines = (place.folder / "data" / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_the_tool_runs_once_and_each_broker_has_ids_of_its_own(tmp_path: Path) -> None:
    """Two folders of one id are one folder to Kafka, and a broker of another cluster's id doesn't start."""
    tools = tools_in(tmp_path)
    prepare(KafkaPlace(1, tmp_path / "a", 1, 2), tools, "theirs")
    cluster = new_id()
    second = prepare(KafkaPlace(2, tmp_path / "b", 3, 4), tools, cluster)
    third = prepare(KafkaPlace(3, tmp_path / "c", 5, 6), tools, cluster)
    assert (tmp_path / "runs").read_text() == "made\n"
    assert (second["version"], second["cluster.id"], second["node.id"]) == ("1", cluster, "2")
    assert (third["cluster.id"], third["node.id"]) == (cluster, "3")
    assert len({"first", second["directory.id"], third["directory.id"]}) == 3
    copied = tmp_path / "c" / "data" / "__cluster_metadata-0" / "0.checkpoint"
    assert copied.read_text() == "features\n"


def test_a_prepared_folder_is_left_alone(tmp_path: Path) -> None:
    """A restart that formats its data anew has lost them."""
    tools, place = tools_in(tmp_path), KafkaPlace(1, tmp_path / "a", 1, 2)
    before = prepare(place, tools, "theirs")
    assert prepare(place, tools, "others") == before


def test_a_preparation_that_broke_off_is_done_again(tmp_path: Path) -> None:
    """The small file comes last: without it the folder counts for nothing."""
    tools = tools_in(tmp_path)
    prepare(KafkaPlace(1, tmp_path / "a", 1, 2), tools, "theirs")
    place = KafkaPlace(2, tmp_path / "b", 3, 4)
    prepare(place, tools, "mine")
    (place.folder / "data" / "meta.properties").unlink()
    assert prepare(place, tools, "mine")["node.id"] == "2"


def test_a_tool_that_fails_is_quoted_and_nothing_is_kept(tmp_path: Path) -> None:
    """The next start would copy a half."""
    tools = tools_in(tmp_path, "#!/bin/sh\necho 'no room left' >&2\nexit 3\n")
    place = KafkaPlace(1, tmp_path / "a", 1, 2)
    with pytest.raises(LocalError, match=r"kafka-1: .*\n.*no room left"):
        prepare(place, tools, "mine")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "java", "kafka-1234"]


def test_a_record_of_classes_is_used_where_there_is_one(tmp_path: Path) -> None:
    """A machine that is told of a record that isn't there does not start."""
    tools, place = tools_in(tmp_path), KafkaPlace(1, tmp_path / "a", 1, 2)
    without = kafka_spec(place, [place], tools=tools, throw_away=True).command
    assert not any("SharedArchiveFile" in option for option in without)
    archive = class_archive(tools.libraries)
    archive.write_bytes(b"")
    assert (
        f"-XX:SharedArchiveFile={archive}" in kafka_spec(place, [place], tools=tools, throw_away=True).command
    )
