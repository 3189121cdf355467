"""The snippets of docs/scale.md that need a cluster."""

import qipf
from tests.docs.snippets import names, snippets, write_files
from tests.ray.shared import RAY

pytestmark = RAY


def test_the_snippets_of_the_page_run(tmp_path, monkeypatch):
    given = names()
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path, given)
    space = {"qipf": qipf, **given}
    page = [each for each in snippets("docs/scale.md") if each.language == "python"]
    assert any("on_ray" in each.code for each in page)
    for snippet in page:
        code = snippet.code.replace('read_parquet("', f'read_parquet("{tmp_path}/')  # of workers
        exec(compile(code, str(snippet), "exec"), space)
    assert space["scored"].count() == 200
