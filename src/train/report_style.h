/* The report's style sheet. Series (s0 to s7) and load colours (h0 to h8) are variables, so that the dark page changes
 * nothing else. */
#ifndef MX8_TRAIN_REPORT_STYLE_H
#define MX8_TRAIN_REPORT_STYLE_H

/* clang-format off */
#define MX8_REPORT_STYLE \
    ":root {\n" \
    "  --bg: #fff; --fg: #1c2126; --soft: #5b6670; --line: #e3e7eb; --zero: #8d979f; --track: #eef1f4;\n" \
    "  --s0: #2563c9; --s1: #d9681d; --s2: #148a66; --s3: #8c4fc4; --s4: #b8374a; --s5: #6b7280; --s6: #a37b00;\n" \
    "  --s7: #0e7c9b;\n" \
    "  --h0: #1f4e9c; --h1: #5583c4; --h2: #93b3dc; --h3: #cbd9ec; --h4: #f1f1ee;\n" \
    "  --h5: #f8d7bd; --h6: #f0a877; --h7: #dd7536; --h8: #b34a10;\n" \
    "}\n" \
    "@media (prefers-color-scheme: dark) {\n" \
    "  :root {\n" \
    "    --bg: #14181c; --fg: #e4e8eb; --soft: #9aa5ae; --line: #2a3138; --zero: #6c7780; --track: #20262c;\n" \
    "    --s0: #6ea3ff; --s1: #ff9a52; --s2: #42c79a; --s3: #c193f2; --s4: #ff7b8b; --s5: #a3adb8; --s6: #e0b93c;\n" \
    "    --s7: #52c4e6;\n" \
    "    --h0: #79a9ff; --h1: #5a87d6; --h2: #41659f; --h3: #334963; --h4: #2b3036;\n" \
    "    --h5: #5c4230; --h6: #93592f; --h7: #cc7434; --h8: #ff9d57;\n" \
    "  }\n" \
    "}\n" \
    "body { margin: 0; background: var(--bg); color: var(--fg);\n" \
    "  font: 16px/1.5 system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; }\n" \
    "main { max-width: 960px; margin: 0 auto; padding: 40px 24px 64px; }\n" \
    "h1 { font-size: 28px; line-height: 1.2; margin: 0 0 4px; }\n" \
    "h2 { font-size: 19px; margin: 44px 0 6px; }\n" \
    ".lead, .note, footer { color: var(--soft); }\n" \
    ".lead { margin: 0 0 20px; }\n" \
    ".note { margin: 2px 0 12px; font-size: 14px; }\n" \
    "dl { display: grid; grid-template-columns: repeat(auto-fit, minmax(200px, 1fr)); gap: 12px 24px;\n" \
    "  margin: 24px 0;\n" \
    "  padding: 16px 0; border: solid var(--line); border-width: 1px 0; }\n" \
    "dt { color: var(--soft); font-size: 13px; }\n" \
    "dd { margin: 0; overflow-wrap: anywhere; }\n" \
    "table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }\n" \
    ".wide { overflow-x: auto; }\n" \
    "th, td { padding: 8px 7px; font-size: 14px; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }\n" \
    "th:first-child, td:first-child { text-align: left; padding-left: 0; }\n" \
    "th { font-weight: 600; font-size: 14px; color: var(--soft); }\n" \
    ".key { display: flex; flex-wrap: wrap; gap: 4px 20px; margin: 4px 0 8px; font-size: 14px; }\n" \
    "i.sw { display: inline-block; width: 14px; height: 14px; border-radius: 3px; margin-right: 8px;\n" \
    "  vertical-align: -2px; }\n" \
    "svg { display: block; width: 100%; height: auto; font-size: 13px; font-family: inherit; }\n" \
    "svg text { fill: var(--soft); }\n" \
    ".tx { text-anchor: middle; }\n" \
    ".ty { text-anchor: end; }\n" \
    "svg .lab { fill: var(--fg); }\n" \
    ".strong { font-weight: 600; }\n" \
    ".grid { stroke: var(--line); fill: none; }\n" \
    ".zero { stroke: var(--zero); fill: none; }\n" \
    ".track { fill: var(--track); }\n" \
    ".l { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }\n" \
    ".raw { stroke-width: 1; opacity: .28; }\n" \
    ".pair { display: grid; grid-template-columns: 3fr 2fr; gap: 8px 40px; }\n" \
    "@media (max-width: 760px) { .pair { grid-template-columns: 1fr; } }\n" \
    "footer { margin-top: 56px; font-size: 13px; border-top: 1px solid var(--line); padding-top: 14px; }\n"
/* clang-format on */

#endif
