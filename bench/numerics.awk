# Lines "seed|name|label|loss", the first recipe of each seed the baseline -> Markdown table; JSON into the file `json`,
# a dot plot into `svg`.
BEGIN { FS = "|" }
{
    if (!($2 in index_of)) {
        index_of[$2] = ++recipes
        name[recipes] = $2
        label[recipes] = $3
    }
    if (!($1 in seen)) seed[++seeds] = $1
    seen[$1] = 1
    loss[$1, $2] = $4
}
function gap_of(i, s) {
    return (loss[seed[s], name[i]] / loss[seed[s], name[1]] - 1) * 100
}
function number(value) {
    return value == "nan" || value != value ? "null" : sprintf("%.6f", value)
}
function draw_line(x, y1, y2, colour, width) {
    printf("<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"%d\"/>\n", x, x, y1, y2,
        colour, width) > svg
}
function draw_text(x, y, anchor, colour, text) {
    printf("<text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\" fill=\"%s\">%s</text>\n", x, y, anchor, colour, text) > svg
}
# The axis: round steps, at most 8 of them, zero included.
function make_axis(i, s, g, turn) {
    low = high = 0
    for (i = 2; i <= recipes; i++)
        for (s = 1; s <= seeds && mean[i] != "nan"; s++) {
            g = gap_of(i, s)
            if (g < low) low = g
            if (g > high) high = g
        }
    for (step = 0.01; (high - low) / step > 8; step *= ++turn % 3 == 2 ? 2.5 : 2) ;
    low = step * (int(low / step) - (low < 0))
    high = step * (int(high / step) + 1)
}
function place(gap) {
    return left + width * (gap - low) / (high - low)
}
function plot(i, s, y, tick, bottom, zero, colour) {
    left = 300
    width = 560
    bottom = 34 + 32 * (recipes - 1)
    make_axis()
    printf("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 900 %d\" ", bottom + 36) > svg
    print "font-family=\"sans-serif\" font-size=\"14\">\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>" > svg
    draw_text(16, 22, "start", "#1c2126", "Loss gap to bf16 in per cent: a dot for each seed, a bar for the mean")
    for (tick = low; tick <= high + step / 2; tick += step) {
        zero = tick > -step / 10 && tick < step / 10
        draw_line(place(tick), 34, bottom, zero ? "#8d979f" : "#e3e7eb", 1)
        draw_text(place(tick), bottom + 20, "middle", "#5b6670", sprintf("%.2f", zero ? 0 : tick))
    }
    for (i = 2; i <= recipes; i++) {
        y = 32 * i - 14
        colour = label[i] ~ /^control/ ? "#d9681d" : "#2563c9"
        draw_text(left - 12, y + 5, "end", "#1c2126", label[i])
        if (mean[i] == "nan") continue
        for (s = 1; s <= seeds; s++)
            printf("<circle cx=\"%.1f\" cy=\"%d\" r=\"5\" fill=\"%s\" fill-opacity=\"0.6\"/>\n", place(gap_of(i, s)), y,
                colour) > svg
        draw_line(place(mean[i]), y - 11, y + 11, colour, 3)
    }
    print "</svg>" > svg
}
END {
    printf "%d steps on %s, outlier channels %s. ", steps, device, outliers
    printf "Loss: mean of the last fifth of the steps.\n\n"
    printf "| recipe | mean loss |"
    for (s = 1; s <= seeds; s++) printf " gap, seed %s |", seed[s]
    printf " mean gap | spread |\n|---|--:|"
    for (s = 1; s <= seeds + 2; s++) printf "--:|"
    printf "\n"
    printf("{\"device\": \"%s\", \"steps\": %d, \"outliers\": \"%s\", \"recipes\": [", device, steps, outliers) > json
    for (i = 1; i <= recipes; i++) {
        sum = sum_loss = square = bad = 0
        for (s = 1; s <= seeds; s++) {
            bad += loss[seed[s], name[i]] == "nan"
            sum_loss += loss[seed[s], name[i]]
            sum += gap_of(i, s)
            square += gap_of(i, s) ^ 2
        }
        mean[i] = sum / seeds
        deviation = seeds > 1 ? square - seeds * mean[i] ^ 2 : 0
        spread = seeds > 1 && deviation > 0 ? sqrt(deviation / (seeds - 1)) : 0
        if (bad) {
            printf "| %s | diverged |\n", label[i]
            mean[i] = spread = "nan"
        } else {
            printf "| %s | %.5f |", label[i], sum_loss / seeds
            for (s = 1; s <= seeds; s++) printf((i == 1 ? " |" : " %+.3f %% |"), gap_of(i, s))
            printf((i == 1 ? " | |\n" : " **%+.3f %%** | %.3f |\n"), mean[i], spread)
        }
        printf("%s\n  {\"name\": \"%s\", ", i > 1 ? "," : "", name[i]) > json
        printf("\"mean_gap_per_cent\": %s, \"spread\": %s, \"losses\": [", number(mean[i]), number(spread)) > json
        for (s = 1; s <= seeds; s++) printf("%s%s", s > 1 ? ", " : "", number(loss[seed[s], name[i]])) > json
        printf("]}") > json
    }
    print "\n]}" > json
    printf "\nGap: to bf16 of the same seed, %%. Spread: standard deviation over the seeds.\n"
    low = high = loss[seed[1], name[1]]
    for (s = 2; s <= seeds; s++) {
        value = loss[seed[s], name[1]]
        if (value < low) low = value
        if (value > high) high = value
    }
    if (seeds > 1) printf "bf16 itself differs by %.3f %% between seeds.\n", (high / low - 1) * 100
    plot()
}
