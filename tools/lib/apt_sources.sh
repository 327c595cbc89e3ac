# Making an apt source for one release of Debian out of an entry that the machine has for another: same mirror, same key,
# same options, so that no address stands in any script. Sourced by tools/setup.sh and tools/lib/private_apt.sh.

# derive_apt_source FORMAT TYPE SUITE FROM: prints an entry in FORMAT (`sources`: deb822, `list`: one line) of TYPE (deb or
# deb-src) for SUITE, made from the first enabled binary entry whose suite matches the pattern FROM and which has `main`.
# Nothing is printed when there is none.
derive_apt_source() {
  local format="$1" type="$2" suite="$3" from="$4" file files=()
  if [ "$format" = sources ]; then
    files=(/etc/apt/sources.list.d/*.sources)
    [ -e "${files[0]}" ] || return 0
    awk -v new_type="$type" -v new_suite="$suite" -v from="[ \t]($from)[ \t]" '
      BEGIN { RS = ""; FS = "\n" }
      found { next }
      {
        keep = ""; is_binary = 0; is_base = 0; is_off = 0; is_main = 0; skipping = 0
        for (i = 1; i <= NF; ++i) {
          line = $i
          if (line ~ /^#/) continue
          if (line ~ /^[ \t]/) { if (!skipping) keep = keep line "\n"; else value = value " " line; }
          else {
            name = tolower(line); sub(/:.*/, "", name)
            value = line; sub(/^[^:]*:/, "", value)
            skipping = (name == "types" || name == "suites" || name == "components" || name == "enabled")
            if (!skipping) keep = keep line "\n"
          }
          if (name == "types" && (" " value " ") ~ /[ \t]deb[ \t]/) is_binary = 1
          if (name == "suites" && (" " value " ") ~ from) is_base = 1
          if (name == "components" && (" " value " ") ~ /[ \t]main[ \t]/) is_main = 1
          if (name == "enabled" && tolower(value) ~ /no|false|0|off/) is_off = 1
        }
        if (is_binary && is_base && is_main && !is_off) {
          printf "Types: %s\nSuites: %s\nComponents: main\n%s", new_type, new_suite, keep
          found = 1
        }
      }' "${files[@]}"
  else
    for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do [ -f "$file" ] && files+=("$file"); done
    [ ${#files[@]} -gt 0 ] || return 0
    sed -nE 's/^[[:space:]]*deb[[:space:]]+(\[[^]]*\][[:space:]]+)?([^[:space:]]+)[[:space:]]+('"$from"')[[:space:]]+([^#]*[[:space:]])?main([[:space:]].*)?$/'"$type"' \1\2 '"$suite"' main/p' \
      "${files[@]}" | head -n 1
  fi
}
