# Commands of a page outside of blocks that are marked "sh run": one a line, joined, without comments.
/^```/ { inside = !inside; skip = inside && /^```sh run/; next }
skip { next }
{
    line = $0
    if (!inside) { if (line !~ /^    [^ ]/) next }
    if (joined != "") { sub(/^ +/, "", line); line = joined line; joined = "" }
    if (line ~ /\\$/) { sub(/\\$/, "", line); joined = line; next }
    sub(/^ +/, "", line)
    sub(/ +# .*$/, "", line)
    gsub(/ +/, " ", line)
    sub(/ $/, "", line)
    if (line ~ /^(([A-Z_]+=[^ ]+|export) )*(mx8|mpirun|srun|cmake|make|cc|python|pip|bench\/|build[a-z-]*\/|\.\/[a-z]+\.sh|echo|git|curl|sh) ?/ && line !~ /^make [A-Z]/) print line
}
