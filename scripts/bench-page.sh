# Sourced by scripts/bench: what the page does while one zooms, by the browser's own trace.
# shellcheck shell=bash
# shellcheck disable=SC2154 # dir is a variable of scripts/bench

measure_page() {
    local what value
    install_missing chromium:chromium
    cargo test -q --test main -- --ignored --exact --nocapture \
        page_time::longest_tasks_with_a_million_samples >"$dir/page"
    while IFS='|' read -r _ what value; do
        row "$what" "$value" ""
    done < <(grep '^row|' "$dir/page")
}
