"""The three pages in a real browser, with no internet."""

from __future__ import annotations

import json

CANNY = "#operations-edges-edges_canny"


def test_swagger_ui_lists_the_operators_and_posts_a_chosen_file(page, url, picture):
    page.open(f"{url}/docs")
    page.until(f"document.querySelector('{CANNY}')")
    assert page.evaluate("document.querySelectorAll('.opblock-post').length") > 5
    page.evaluate(f"document.querySelector('{CANNY} .opblock-summary-control').click()")
    page.until(f"document.querySelector('{CANNY} .try-out__btn')")
    page.evaluate(f"document.querySelector('{CANNY} .try-out__btn').click()")
    page.until(f"document.querySelector('{CANNY} input[type=file]')")
    page.choose_file(f"{CANNY} input[type=file]", picture)
    page.evaluate(f"document.querySelector('{CANNY} .execute').click()")
    page.until(f"document.querySelector('{CANNY} .live-responses-table tbody .response-col_status')")
    assert page.evaluate(f"document.querySelector('{CANNY} .live-responses-table tbody .response-col_status').innerText").startswith("200")
    shown = page.evaluate(f"document.querySelector('{CANNY} .live-responses-table').innerText")
    assert '"edge_pixels"' in shown
    assert '"width": 80' in shown


def test_swagger_ui_has_a_picker_for_several_files(page, url):
    batch = "#operations-pipelines-batch"
    page.open(f"{url}/docs")
    page.until(f"document.querySelector('{batch}')")
    page.evaluate(f"document.querySelector('{batch} .opblock-summary-control').click()")
    page.until(f"document.querySelector('{batch} .try-out__btn')")
    page.evaluate(f"document.querySelector('{batch} .try-out__btn').click()")
    page.until(f"document.querySelector('{batch} .json-schema-form-item-add')")
    page.evaluate(f"document.querySelector('{batch} .json-schema-form-item-add').click()")
    page.until(f"document.querySelector('{batch} input[type=file]')")


def test_redoc_shows_the_reference(page, url):
    page.open(f"{url}/redoc")
    page.until("document.querySelector('[data-section-id]')")
    text = page.evaluate("document.body.innerText")
    assert "visionbatch" in text
    assert "/v1/edges/canny" in text


def answered(page):
    return page.until("document.body.dataset.answered")


def choose(page, operator):
    page.evaluate("delete document.body.dataset.answered")
    page.evaluate(
        f"(() => {{ const s = document.getElementById('operator'); s.value = '{operator}'; s.dispatchEvent(new Event('change')); }})()"
    )
    answered(page)


def drawn(page):
    """How many pixels of the canvas differ from its first one."""
    return page.evaluate("""(() => {
        const canvas = document.getElementById('after');
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        let count = 0;
        for (let i = 0; i < data.length; i += 4)
          if (data[i] !== data[0] || data[i + 1] !== data[1] || data[i + 2] !== data[2] || data[i + 3] !== data[3]) count++;
        return count;
    })()""")


def test_the_playground_answers_for_every_kind_of_result(page, url):
    page.open(f"{url}/")
    answered(page)
    assert page.evaluate("document.getElementById('operator').value") == "edges/canny"
    for operator in ("edges/canny", "edges/sobel", "features/fast", "histograms/histogram", "histograms/otsu"):
        choose(page, operator)
        assert page.evaluate("document.getElementById('status').className") == ""
        assert drawn(page) > 100, operator
        assert page.evaluate("document.getElementById('timings').rows.length") == 5


def test_the_playground_sends_what_the_form_says(page, url, picture):
    page.open(f"{url}/#edges/canny")
    answered(page)
    page.evaluate("delete document.body.dataset.answered")
    page.choose_file("#file", picture)
    answered(page)
    assert "80 x 60 ppm" in page.evaluate("document.getElementById('status').innerText")
    page.evaluate("delete document.body.dataset.answered")
    page.evaluate("""(() => {
        const slider = document.querySelector('#parameters [name=low]').parentElement.querySelector('input[type=range]');
        slider.value = 55; slider.dispatchEvent(new Event('input', { bubbles: true }));
    })()""")
    answered(page)
    assert json.loads(page.evaluate("document.getElementById('json').textContent"))["params"]["low"] == 55
    for language, words in (("curl", "--data-binary @'squares.pgm'"), ("python", "httpx.post"), ("fetch", "await fetch")):
        page.evaluate(f"document.querySelector('[data-language={language}]').click()")
        code = page.until(f"document.getElementById('code').textContent.includes({words!r}) && document.getElementById('code').textContent")
        assert "low=55" in code


def test_the_playground_shows_what_the_service_refuses(page, url):
    page.open(f"{url}/#edges/canny")
    answered(page)
    page.evaluate("""(() => {
        const number = document.querySelector('#parameters [name=low]');
        number.value = -5; number.dispatchEvent(new Event('input', { bubbles: true }));
    })()""")
    page.until("document.getElementById('status').className === 'error'")
    assert "invalid-parameter" in page.evaluate("document.getElementById('status').innerText")
    page.errors[:] = [error for error in page.errors if "422" not in error]  # the browser logs every refusal
