# Points of bench/growth.sh ("series value tokens/s bytes") as a table on the terminal and four panels in `svg`: processor
# time a token (solid) and memory (dashed), both in units of the series' first point, on logarithmic axes.

function log2(x) { return log(x) / log(2) }

$3 > 0 {
    key = $1 SUBSEP $2
    if (!($1 in count)) names[++series] = $1
    if (!(key in speed)) at[$1, ++count[$1]] = $2
    if ($3 > speed[key]) speed[key] = $3
    memory[key] = $4
}

# Height of a ratio in a panel from 2^least to 2^most.
function height(ratio, least, most) { return 200 - 140 * (log2(ratio) - least) / (most - least) }

function panel(p,    s, n, i, x, y, line, dash, left, base, least, most, v) {
    s = names[p]
    n = count[s]
    left = 60 + (p - 1) * 230
    base = 210
    least = 0
    most = 1
    for (i = 1; i <= n; i++) {
        v = log2(memory[s, at[s, i]] / memory[s, at[s, 1]])
        if (v > most) most = v
        if (v < least) least = v
        v = log2(speed[s, at[s, 1]] / speed[s, at[s, i]])
        if (v > most) most = v
        if (v < least) least = v
    }
    printf "<text x=\"%d\" y=\"24\" font-weight=\"bold\">%s</text>\n", left, s > svg
    printf "<path d=\"M%d 40V%dH%d\" fill=\"none\" stroke=\"#888\"/>\n", left, base, left + 180 > svg
    line = dash = ""
    for (i = 1; i <= n; i++) {
        x = left + (n > 1 ? 170 * (i - 1) / (n - 1) : 0)
        y = height(speed[s, at[s, 1]] / speed[s, at[s, i]], least, most)
        line = line (i > 1 ? "L" : "M") x " " y
        printf "<circle cx=\"%g\" cy=\"%g\" r=\"3\" fill=\"#2166ac\"/>\n", x, y > svg
        y = height(memory[s, at[s, i]] / memory[s, at[s, 1]], least, most)
        dash = dash (i > 1 ? "L" : "M") x " " y
        printf "<text x=\"%g\" y=\"%d\" text-anchor=\"middle\">%s</text>\n", x, base + 16, at[s, i] > svg
    }
    printf "<path d=\"%s\" fill=\"none\" stroke=\"#2166ac\" stroke-width=\"2\"/>\n", line > svg
    printf "<path d=\"%s\" fill=\"none\" stroke=\"#b2182b\" stroke-width=\"2\" stroke-dasharray=\"5 4\"/>\n", dash > svg
    y = height(1, least, most)
    printf "<path d=\"M%d %gh180\" stroke=\"#ddd\"/>\n", left, y > svg
    printf "<text x=\"%d\" y=\"48\">x %.3g</text>\n", left + 4, 2 ^ most > svg
    printf "<text x=\"%d\" y=\"%g\" text-anchor=\"end\">x 1</text>\n", left - 6, y + 4 > svg
}

END {
    printf "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d 260\" ", 60 + series * 230 > svg
    printf "font-family=\"sans-serif\" font-size=\"11\">\n" > svg
    printf "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n" > svg
    printf "<text x=\"60\" y=\"250\">solid: processor time a token; dashed: memory; both in units of the first point</text>\n" > svg
    printf "%-10s %8s %14s %12s\n", "series", "value", "time a token", "memory MiB"
    for (p = 1; p <= series; p++) {
        s = names[p]
        for (i = 1; i <= count[s]; i++)
            printf "%-10s %8s %14.2f %12.1f\n", s, at[s, i], speed[s, at[s, 1]] / speed[s, at[s, i]],
                memory[s, at[s, i]] / 1048576
        panel(p)
    }
    print "</svg>" > svg
}
