#!/bin/sh
# shellcheck disable=SC2086 # $tiny is a list of words
# mx8 quantize on weights that mx8 train wrote: axes, layouts, reading back, and files that are not what they claim.
. "$(dirname "$0")/lib.sh"
make_corpus

expect 0 train $tiny --training.steps=1 --job.dump_folder=run --checkpoint.enable
weights=$(find run -name '*.safetensors')
[ -n "$weights" ] || fail "no weights were saved"

# The JSON header follows 8 bytes of length.
read_header() { head -c 65536 "$1" | tail -c +9 | tr '}' '\n'; }

for axis in rows cols; do
    for layout in plain blocked; do
        expect 0 quantize "$weights" $axis-$layout.safetensors --axis $axis --layout $layout
        has out '^layers\.0\.attention\.wq\.weight +\(64, 64\) +SQNR +[23][0-9]\.[0-9]+ dB$'
        has out '^layers\.0\.moe\.experts\.w1 +\(4, [0-9]+, 64\) +SQNR +[23][0-9]\.[0-9]+ dB$'
        has out '^norm\.weight +copied \(f32, 1 dimension\)$'
        read_header $axis-$layout.safetensors >head.json
        has head.json '"layers\.0\.attention\.wq\.weight": ?\{"dtype": ?"F8_E4M3"'
        has head.json '"layers\.0\.attention\.wq\.weight\.scale": ?\{"dtype": ?"F8_E8M0"'
        # reading back: everything is 8 bits or a vector now, and is copied as it is
        expect 0 quantize $axis-$layout.safetensors again.safetensors
        has out '^layers\.0\.attention\.wq\.weight +copied \(f8_e4m3, 2 dimensions\)$'
        has_not out 'SQNR'
    done
done
read_header rows-plain.safetensors >head.json
has head.json '"layers\.0\.attention\.wk\.weight".*"shape": ?\[32, ?64\]'
read_header cols-plain.safetensors >head.json
has head.json '"layers\.0\.attention\.wk\.weight".*"shape": ?\[64, ?32\]'

for rule in floor ceil even; do
    expect 0 quantize "$weights" $rule.safetensors --scale-rule $rule --scale-group 128
done

head -c 5000 "$weights" >short.safetensors
expect 1 quantize short.safetensors out.safetensors
has err 'short\.safetensors'
printf 'not a tensor file' >text.safetensors
expect 1 quantize text.safetensors out.safetensors
has err 'text\.safetensors'
expect 1 quantize missing.safetensors out.safetensors
has err 'missing\.safetensors'
[ ! -e out.safetensors ] || fail "a failed run left an output file"
