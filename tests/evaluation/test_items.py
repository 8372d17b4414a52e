"""Items of an evaluation: one per file or caption and group, with group ids that agree across modalities."""

from dataclasses import replace

from triptych.checkpoint import load
from triptych.data import manifest
from triptych.evaluation.items import embed_items


def test_group_ids_agree_across_modalities(run_dir, synthetic_manifest):
    rows = manifest.read(synthetic_manifest).rows[:10]
    items, failures = embed_items(load(run_dir), rows, show_progress=False)
    assert failures == {}
    group_by_id = {}
    for modality_items in items.values():
        assert len(modality_items) == len(modality_items.features.embedding)
        for item, group_id in zip(modality_items.entries, modality_items.group_ids.tolist(), strict=True):
            assert group_by_id.setdefault(group_id, item.group) == item.group
    assert sorted(group_by_id.values()) == sorted(row.group for row in rows)


def test_a_file_in_two_groups_is_two_items(run_dir, synthetic_manifest):
    row = manifest.read(synthetic_manifest).rows[0]
    items, _ = embed_items(load(run_dir), [row, replace(row, id="other", group="other")], show_progress=False)
    assert [item.group for item in items["image"].entries] == [row.group, "other"]
