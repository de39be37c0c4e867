#!/usr/bin/env bash
# Prepares the commit of a release: sets the version everywhere, and moves the changelog fragments to CHANGELOG.md.
#   tools/release.sh 0.2.0
set -euo pipefail
cd "$(dirname "$0")/.."
version=${1-}
[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || { echo "usage: tools/release.sh X.Y.Z, not '$version'" >&2; exit 2; }

sed -i "s/^version = \"[0-9.]*\"$/version = \"$version\"/" packages/*/pyproject.toml
sed -i "s/^version: .*/version: $version/" CITATION.cff
sed -i "s/newTag: .*/newTag: $version/" deploy/kubernetes/*/kustomization.yaml
# The loader's section comes first: what is inserted last is on top.
for package in headrace-doctor headrace; do
  towncrier build --dir "packages/$package" --version "$version" --yes
done
echo "Now look at the changes, and: git commit -am 'Release $version' && git tag v$version"
